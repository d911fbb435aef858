#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "batch_sequences.h"
#include "sftrun/layers/generation_pass.h"
#include "sftrun/model/packed_batch.h"

namespace sftrun::model {

/// What a pass of generation reads: the last tokens of the first rows of the cache (decode), after
/// them whole sequences as one packed batch (prefill).
struct GenerationInputs {
  struct Decode {
    std::vector<int64_t> positions, lengths, tokens;  ///< of each row
    layers::BatchContext context;
    at::Tensor device_positions;  ///< `positions` on the device
    std::optional<layers::StepMasks> masks;
    int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  };
  struct Prefill {
    std::vector<size_t> rows;
    PackedBatch packed;
    std::vector<int32_t> cu_seqlens;
    int64_t longest = 0;
    int64_t count() const { return cu_seqlens.back(); }
  };
  Decode decode;
  Prefill prefill;

  /// Also sets the lengths of the rows to those after the pass.
  /// @param num_decoded rows, from the first, that get their next token
  /// @param prefill_rows rows that are read with their tokens so far
  GenerationInputs(std::vector<CachedSequence>& rows, size_t num_decoded,
                   const std::vector<size_t>& prefill_rows, Decoder& decoder);

  bool has_prefill() const { return !prefill.rows.empty(); }
  /// The rows that get a token, in the order of the pass.
  std::vector<size_t> rows() const;
  /// Tokens that a row of the cache must hold, and some more after a prefill.
  int64_t max_length() const;
  at::Tensor tokens(at::Device device) const;  ///< [T] of the pass
  layers::BatchContext context() const;        ///< of these tokens
  /// @param hidden [T, hidden]   @return of the last token of each of `rows()`
  at::Tensor last_of_rows(const at::Tensor& hidden) const;
  layers::GenerationPass pass(const layers::BatchContext& context,
                              std::span<const std::unique_ptr<layers::LayerCache>> caches);
};

}  // namespace sftrun::model
