#include "sftrun/kernels/delta_chunks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

struct ChunkedDocument {
  int64_t begin = 0, length = 0;
  int64_t num_chunks() const { return (length + kChunk - 1) / kChunk; }
};

std::vector<ChunkedDocument> longest_first(const std::vector<int32_t>& cu_seqlens) {
  std::vector<ChunkedDocument> documents;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const ChunkedDocument document{cu_seqlens[i], cu_seqlens[i + 1] - cu_seqlens[i]};
    if (document.length > 0) documents.push_back(document);
  }
  std::stable_sort(documents.begin(), documents.end(),
                   [](const ChunkedDocument& a, const ChunkedDocument& b) {
                     return a.num_chunks() > b.num_chunks();
                   });
  return documents;
}

/// Number of chunks of each step: the documents that are long enough.
std::vector<int64_t> steps_of(const std::vector<ChunkedDocument>& documents) {
  std::vector<int64_t> steps;
  for (const ChunkedDocument& document : documents) {
    if (steps.empty()) steps.resize(static_cast<size_t>(document.num_chunks()), 0);
    for (int64_t step = 0; step < document.num_chunks(); ++step) ++steps[static_cast<size_t>(step)];
  }
  return steps;
}

/// Adds one chunk: tokens of the document from its token `begin` on.
void add_tokens(ChunkArrays& arrays, const ChunkedDocument& document, int64_t begin) {
  for (int64_t i = begin; i < begin + kChunk; ++i) {
    const int64_t token = document.begin + std::min(i, document.length - 1);
    if (i < document.length)
      arrays.places[static_cast<size_t>(token)] = static_cast<int64_t>(arrays.tokens.size());
    arrays.tokens.push_back(token);
    arrays.real.push_back(i < document.length ? 1 : 0);
  }
}

template <typename T>
at::Tensor on(at::Device device, const std::vector<T>& values) {
  return at::tensor(values, c10::CppTypeToScalarType<T>::value).to(device);
}

}  // namespace

at::Tensor Chunks::cut(const at::Tensor& x) const {
  return x.index_select(0, tokens.view(-1)).unflatten(0, {-1, kChunk});
}

at::Tensor Chunks::join(const at::Tensor& y) const {
  return y.flatten(0, 1).index_select(0, places);
}

ChunkArrays chunk_arrays(const std::vector<int32_t>& cu_seqlens) {
  const std::vector<ChunkedDocument> documents = longest_first(cu_seqlens);
  SFTRUN_CHECK(!documents.empty());
  ChunkArrays arrays;
  arrays.steps = steps_of(documents);
  const auto count =
      static_cast<size_t>(std::accumulate(arrays.steps.begin(), arrays.steps.end(), int64_t{0}));
  arrays.tokens.reserve(count * kChunk), arrays.real.reserve(count * kChunk);
  arrays.places.resize(static_cast<size_t>(cu_seqlens.back()));
  int64_t first = 0;  // first chunk of the step
  for (size_t step = 0; step < arrays.steps.size(); ++step) {
    const int64_t here = arrays.steps[step],
                  after = step + 1 < arrays.steps.size() ? arrays.steps[step + 1] : 0;
    for (int64_t rank = 0; rank < here; ++rank) {
      arrays.previous.push_back(step > 0 ? first - arrays.steps[step - 1] + rank : 0);
      arrays.following.push_back(rank < after ? first + here + rank : 0);
      arrays.has_following.push_back(rank < after ? 1 : 0);
      add_tokens(arrays, documents[static_cast<size_t>(rank)], static_cast<int64_t>(step) * kChunk);
    }
    first += here;
  }
  return arrays;
}

Chunks chunks_of(const BatchMetadata& batch, at::Device device) {
  if (batch.chunks) return *batch.chunks;
  const ChunkArrays arrays = chunk_arrays(batch.cu_seqlens);
  return {.steps = arrays.steps,
          .tokens = on(device, arrays.tokens).view({-1, kChunk}),
          .real = on(device, arrays.real).view({-1, kChunk}),
          .previous = on(device, arrays.previous),
          .following = on(device, arrays.following),
          .has_following = on(device, arrays.has_following),
          .places = on(device, arrays.places)};
}

}  // namespace sftrun::kernels
