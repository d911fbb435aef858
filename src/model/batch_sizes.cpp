#include "sftrun/model/batch_sizes.h"

#include <algorithm>
#include <bit>

namespace sftrun::model {
namespace {

constexpr int64_t kSmallest = 64;

int64_t power_of_two(int64_t least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
}

/// Rounds up to a multiple of 1 / `parts` of the largest power of two <= count, and of `kSmallest`.
int64_t rounded_up(int64_t count, int64_t parts) {
  const auto floor =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
  const int64_t step = std::max(kSmallest, floor / parts);
  return std::max(step, (count + step - 1) / step * step);
}

/// First token of the longest document.
int64_t longest_document(const data::Batch& batch) {
  size_t document = 0;
  while (batch.cu_seqlens[document + 1] - batch.cu_seqlens[document] != batch.max_seqlen)
    ++document;
  return batch.cu_seqlens[document];
}

int64_t documents_of(int64_t tokens, int64_t longest) {
  return (tokens + longest - 1) / longest;
}

}  // namespace

BatchSizes rounded_sizes(const data::Batch& batch) {
  BatchSizes sizes;
  sizes.tokens = rounded_up(batch.num_tokens(), 8);
  sizes.labels = std::min(rounded_up(batch.label_tokens, 4), sizes.tokens);
  const int64_t longest = batch.max_seqlen, added = sizes.tokens - batch.num_tokens();
  const auto own = static_cast<int64_t>(batch.cu_seqlens.size()) - 1;
  sizes.documents = power_of_two(own + documents_of(added, longest));
  sizes.longest = std::min(power_of_two(longest), sizes.tokens);
  return sizes;
}

data::Batch filled_up(const data::Batch& batch, const BatchSizes& sizes) {
  data::Batch full = batch;
  const int64_t longest = longest_document(batch);
  for (int64_t first = batch.num_tokens(); first < sizes.tokens; first += batch.max_seqlen) {
    const int64_t end = std::min(sizes.tokens, first + batch.max_seqlen);
    for (int64_t i = first; i < end; ++i) {
      full.tokens.push_back(batch.tokens[static_cast<size_t>(longest + i - first)]);
      full.position_ids.push_back(static_cast<int32_t>(i - first));
    }
    full.cu_seqlens.push_back(static_cast<int32_t>(end));
    full.document_keys.push_back(0);
  }
  full.labels.resize(static_cast<size_t>(sizes.tokens), data::kIgnoreIndex);
  return full;
}

}  // namespace sftrun::model
