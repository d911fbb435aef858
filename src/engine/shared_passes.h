#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/parallel/mesh.h"

/// Forward passes over a list of texts, which the ranks share.
namespace sftrun::engine {

/// Neighbours [first, end) of a list.
struct Neighbours {
  size_t first = 0, end = 0;
};
/// The list in pieces that have about as many tokens as a pass needs to be fast: up to 4096, or one item.
/// @param num_tokens of an item   @param together so many items in a row stay in one piece
std::vector<Neighbours> pieces_for_passes(size_t count,
                                          const std::function<int64_t(size_t)>& num_tokens,
                                          size_t together = 1);

/// Pieces that the ranks compute at the same time.
struct SharedPass {
  size_t first = 0, end = 0;  ///< pieces of all ranks
  std::optional<size_t> own;  ///< the piece of this rank; nullopt: none is left for it
};
/// The ranks share the pieces, and each makes as many passes: where weights are divided a rank takes
/// part in those of the others, also without a piece of its own.
/// @param stop asked before each pass; another value than 0 ends the work
/// @return what `stop` said last
int share_passes(const parallel::Mesh& mesh, size_t num_pieces, const std::function<int()>& stop,
                 const std::function<void(const SharedPass&)>& compute);

/// Examples as the batch that `prepare` puts on a device.   @param bin empty: no tokens
/// @throws DataError naming the record, for images and features that cannot be read
model::PackedBatch prepared_batch(
    const data::Dataset& dataset, const data::Bin& bin,
    const std::function<model::PackedBatch(const data::Batch&)>& prepare);
/// The same on the device of the decoder.
model::PackedBatch device_batch(model::Decoder& decoder, const data::Dataset& dataset,
                                const data::Bin& bin, const model::BatchOptions& options);

}  // namespace sftrun::engine
