#include "generation_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/data/example.h"

namespace sftrun::model {
namespace {

data::Batch batch_of(const std::vector<std::vector<int32_t>>& documents) {
  data::Batch batch;
  batch.cu_seqlens = {0};
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto length = static_cast<int32_t>(documents[i].size());
    SFTRUN_CHECK(length > 0);
    batch.tokens.insert(batch.tokens.end(), documents[i].begin(), documents[i].end());
    for (int32_t position = 0; position < length; ++position)
      batch.position_ids.push_back(position);
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.document_keys.push_back(static_cast<uint32_t>(i));
    batch.max_seqlen = std::max(batch.max_seqlen, length);
  }
  batch.labels.assign(batch.tokens.size(), data::kIgnoreIndex);
  return batch;
}

GenerationInputs::Decode next_tokens(std::vector<CachedSequence>& rows, size_t count,
                                     Decoder& decoder) {
  GenerationInputs::Decode decode;
  for (size_t i = 0; i < count; ++i) {
    CachedSequence& row = rows[i];
    decode.positions.push_back(row.length++);
    decode.lengths.push_back(row.length);
    decode.tokens.push_back(row.next);
  }
  if (count == 0) return decode;
  const at::Device device = decoder.options().device;
  decoder.rope().fill_positions(decode.context, decode.positions, device);
  decode.device_positions = at::tensor(decode.positions).to(device);
  decode.masks.emplace(decode.lengths, device);
  return decode;
}

/// The given rows with their tokens so far.
GenerationInputs::Prefill whole_sequences(std::vector<CachedSequence>& rows,
                                          const std::vector<size_t>& chosen, Decoder& decoder) {
  GenerationInputs::Prefill prefill{.rows = chosen, .cu_seqlens = {0}};
  if (chosen.empty()) return prefill;
  std::vector<std::vector<int32_t>> documents;
  for (const size_t row : chosen) {
    CachedSequence& sequence = rows[row];
    std::vector<int32_t> tokens = sequence.request.prompt.tokens;
    tokens.insert(tokens.end(), sequence.result.tokens.begin(), sequence.result.tokens.end());
    sequence.length = static_cast<int64_t>(tokens.size());
    prefill.longest = std::max(prefill.longest, sequence.length);
    documents.push_back(std::move(tokens));
  }
  const data::Batch batch = batch_of(documents);
  prefill.cu_seqlens = batch.cu_seqlens;
  prefill.packed = prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
  return prefill;
}

}  // namespace

GenerationInputs::GenerationInputs(std::vector<CachedSequence>& rows, size_t num_decoded,
                                   const std::vector<size_t>& prefill_rows, Decoder& decoder)
    : decode(next_tokens(rows, num_decoded, decoder)),
      prefill(whole_sequences(rows, prefill_rows, decoder)) {}

std::vector<size_t> GenerationInputs::rows() const {
  std::vector<size_t> rows(decode.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  rows.insert(rows.end(), prefill.rows.begin(), prefill.rows.end());
  return rows;
}

int64_t GenerationInputs::max_length() const {
  constexpr int64_t kFirstTokens = 64;  // of the answers
  int64_t longest = has_prefill() ? prefill.longest + kFirstTokens : 0;
  for (const int64_t length : decode.lengths) longest = std::max(longest, length);
  return longest;
}

at::Tensor GenerationInputs::tokens(at::Device device) const {
  const at::Tensor next = at::tensor(decode.tokens, at::kLong).to(device);
  if (!has_prefill()) return next;
  return at::cat({next.to(prefill.packed.tokens.scalar_type()), prefill.packed.tokens});
}

layers::BatchContext GenerationInputs::context() const {
  if (!has_prefill()) return decode.context;
  layers::BatchContext context = prefill.packed.context;
  for (size_t i = 0; decode.count() > 0 && i < context.ropes.size(); ++i) {
    const kernels::RopeAngles& first = decode.context.ropes[i];
    context.ropes[i] = {at::cat({first.cos, context.ropes[i].cos}),
                        at::cat({first.sin, context.ropes[i].sin})};
  }
  return context;
}

at::Tensor GenerationInputs::last_of_rows(const at::Tensor& hidden) const {
  if (!has_prefill()) return hidden;
  std::vector<int64_t> last(decode.tokens.size());
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 0; i < prefill.rows.size(); ++i)
    last.push_back(decode.count() + prefill.cu_seqlens[i + 1] - 1);
  return hidden.index_select(0, at::tensor(last).to(hidden.device()));
}

layers::GenerationPass GenerationInputs::pass(
    const layers::BatchContext& context,
    std::span<const std::unique_ptr<layers::LayerCache>> caches) {
  return {.context = context,
          .decode = {.count = decode.count(),
                     .positions = decode.device_positions,
                     .masks = decode.masks ? &*decode.masks : nullptr},
          .prefill = {.rows = prefill.rows,
                      .cu_seqlens = prefill.cu_seqlens,
                      .context = &prefill.packed.context},
          .caches = caches};
}

}  // namespace sftrun::model
