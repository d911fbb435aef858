#include "generation_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/example_store.h"
#include "sftrun/data/media_faults.h"

namespace sftrun::model {
namespace {

data::Batch batch_of(const std::vector<data::Example>& documents) {
  std::vector<data::Bin> bins(1);
  for (size_t i = 0; i < documents.size(); ++i) bins[0].push_back(static_cast<int64_t>(i));
  return data::make_batch(data::ExampleStore::in_memory(documents), bins, 0, 1);
}

GenerationInputs::Decode next_tokens(std::vector<CachedSequence>& rows, size_t count,
                                     Decoder& decoder) {
  GenerationInputs::Decode decode;
  std::vector<int64_t> rope_positions;
  for (size_t i = 0; i < count; ++i) {
    CachedSequence& row = rows[i];
    rope_positions.push_back(row.length + row.rope_shift);
    decode.positions.push_back(row.length++);
    decode.lengths.push_back(row.length);
    decode.tokens.push_back(row.next);
  }
  if (count == 0) return decode;
  const at::Device device = decoder.options().device;
  decoder.rope().fill_positions(decode.context, rope_positions, device);
  decode.device_positions = at::tensor(decode.positions).to(device);
  decode.masks.emplace(decode.lengths, device);
  return decode;
}

/// From the number of tokens to the position of the next one, which is the same on all axes.
/// @pre the batch has positions on axes
int64_t rope_shift(const data::Batch& batch, size_t document) {
  const int32_t end = batch.cu_seqlens[document + 1];
  const auto last = static_cast<size_t>(end) - 1;  // a text token
  return batch.rope_positions[last] + 1 - (end - batch.cu_seqlens[document]);
}

/// @throws data::MediaError with the index of the prompt as its document
PackedBatch pack_prompts(const data::Batch& batch, const std::vector<CachedSequence>& rows,
                         const std::vector<size_t>& chosen, Decoder& decoder) {
  BatchTarget target = decoder.batch_target();
  target.sequence_ranks = nullptr;  // each rank has all tokens of the prompts that it reads
  try {
    return prepare_batch(batch, decoder.rope(), target, {});
  } catch (const data::MediaError& error) {
    const size_t row = chosen[static_cast<size_t>(error.document())];
    throw data::MediaError(error, static_cast<int64_t>(rows[row].request.prompt.index));
  }
}

/// The given rows with their tokens so far.
GenerationInputs::Prefill whole_sequences(std::vector<CachedSequence>& rows,
                                          const std::vector<size_t>& chosen, Decoder& decoder) {
  GenerationInputs::Prefill prefill{.rows = chosen, .cu_seqlens = {0}};
  if (chosen.empty()) return prefill;
  std::vector<data::Example> documents;
  for (const size_t row : chosen) {
    CachedSequence& sequence = rows[row];
    data::Example& document = documents.emplace_back();
    document.tokens = sequence.request.prompt.tokens;
    document.tokens.insert(document.tokens.end(), sequence.result.tokens.begin(),
                           sequence.result.tokens.end());
    document.labels.assign(document.tokens.size(), data::kIgnoreIndex);
    document.media = sequence.request.prompt.media;
    sequence.length = std::ssize(document.tokens);
    prefill.longest = std::max(prefill.longest, sequence.length);
  }
  data::Batch batch = batch_of(documents);
  if (decoder.batch_target().has_rope_axes) {
    data::set_rope_positions(batch, decoder.batch_target().vision->merger.side);
    for (size_t i = 0; i < chosen.size() && !batch.rope_positions.empty(); ++i)
      rows[chosen[i]].rope_shift = rope_shift(batch, i);
  }
  prefill.cu_seqlens = batch.cu_seqlens;
  prefill.packed = pack_prompts(batch, rows, chosen, decoder);
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
