#include "shared_passes.h"

#include <algorithm>

#include "sftrun/data/media_faults.h"

namespace sftrun::engine {

std::vector<Neighbours> pieces_for_passes(size_t count,
                                          const std::function<int64_t(size_t)>& num_tokens,
                                          size_t together) {
  constexpr int64_t kTokens = 4096;
  std::vector<Neighbours> pieces;
  int64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t of_item = num_tokens(i);
    const bool may_begin = i % together == 0;
    if (pieces.empty() || (may_begin && tokens + of_item > kTokens)) {
      pieces.push_back({i, i});
      tokens = 0;
    }
    pieces.back().end = i + 1;
    tokens += of_item;
  }
  return pieces;
}

int share_passes(const parallel::Mesh& mesh, size_t num_pieces, const std::function<int()>& stop,
                 const std::function<void(const SharedPass&)>& compute) {
  const auto parts = static_cast<size_t>(mesh.dp_size());
  for (size_t first = 0; first < num_pieces; first += parts) {
    if (const int code = stop()) return code;
    const size_t own = first + static_cast<size_t>(mesh.dp_rank());
    compute({.first = first,
             .end = std::min(first + parts, num_pieces),
             .own = own < num_pieces ? std::optional(own) : std::nullopt});
  }
  return 0;
}

model::PackedBatch prepared_batch(
    const data::Dataset& dataset, const data::Bin& bin,
    const std::function<model::PackedBatch(const data::Batch&)>& prepare) {
  const std::vector<data::Bin> bins(bin.empty() ? 0 : 1, bin);
  const data::Batch batch =
      data::make_batch(dataset.examples(), bins, 0, static_cast<int64_t>(bins.size()));
  try {
    return prepare(batch);
  } catch (const data::MediaError& error) {
    const int64_t example = bin[static_cast<size_t>(error.document())];
    throw data::error_in_record(error, dataset.place_of(example), /*may_be_left_out=*/false);
  }
}

model::PackedBatch device_batch(model::Decoder& decoder, const data::Dataset& dataset,
                                const data::Bin& bin, const model::BatchOptions& options) {
  return prepared_batch(dataset, bin, [&](const data::Batch& batch) {
    return model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {}, options);
  });
}

}  // namespace sftrun::engine
