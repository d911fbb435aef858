#include "chunks.h"

#include <ATen/ATen.h>

#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

struct Document {
  int64_t begin = 0, length = 0;
  int64_t num_chunks() const { return (length + kChunk - 1) / kChunk; }
};

std::vector<Document> longest_first(const BatchContext& batch) {
  std::vector<Document> documents;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const Document document{batch.cu_seqlens[i], batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]};
    if (document.length > 0) documents.push_back(document);
  }
  std::stable_sort(documents.begin(), documents.end(), [](const Document& a, const Document& b) {
    return a.num_chunks() > b.num_chunks();
  });
  return documents;
}

/// Chunks of each step: the documents that reach it.
std::vector<int64_t> steps_of(const std::vector<Document>& documents) {
  std::vector<int64_t> steps;
  for (const Document& document : documents) {
    if (steps.empty()) steps.resize(static_cast<size_t>(document.num_chunks()), 0);
    for (int64_t step = 0; step < document.num_chunks(); ++step) ++steps[static_cast<size_t>(step)];
  }
  return steps;
}

at::Tensor on(at::Device device, const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong).to(device);
}

}  // namespace

at::Tensor Chunks::cut(const at::Tensor& x) const {
  return x.index_select(0, tokens.view(-1)).unflatten(0, {-1, kChunk});
}

at::Tensor Chunks::join(const at::Tensor& y) const {
  return y.flatten(0, 1).index_select(0, places);
}

Chunks chunks_of(const BatchContext& batch, at::Device device) {
  Chunks chunks;
  const std::vector<Document> documents = longest_first(batch);
  chunks.steps = steps_of(documents);
  SFTRUN_CHECK(!documents.empty());
  const int64_t count = std::accumulate(chunks.steps.begin(), chunks.steps.end(), int64_t{0});
  std::vector<int64_t> tokens, previous, following;
  std::vector<int64_t> places(static_cast<size_t>(batch.cu_seqlens.back()));
  std::vector<float> real, has_following;
  int64_t first = 0;  // chunk of the step
  for (size_t step = 0; step < chunks.steps.size(); ++step) {
    const int64_t here = chunks.steps[step],
                  after = step + 1 < chunks.steps.size() ? chunks.steps[step + 1] : 0;
    for (int64_t rank = 0; rank < here; ++rank) {
      const Document& document = documents[static_cast<size_t>(rank)];
      const int64_t begin = static_cast<int64_t>(step) * kChunk;
      previous.push_back(step > 0 ? first - chunks.steps[step - 1] + rank : 0);
      following.push_back(rank < after ? first + here + rank : 0);
      has_following.push_back(rank < after ? 1 : 0);
      for (int64_t i = begin; i < begin + kChunk; ++i) {
        const int64_t token = document.begin + std::min(i, document.length - 1);
        if (i < document.length)
          places[static_cast<size_t>(token)] = static_cast<int64_t>(tokens.size());
        tokens.push_back(token);
        real.push_back(i < document.length ? 1 : 0);
      }
    }
    first += here;
  }
  chunks.tokens = on(device, tokens).view({count, kChunk});
  chunks.real = at::tensor(real, at::kFloat).to(device).view({count, kChunk});
  chunks.previous = on(device, previous);
  chunks.following = on(device, following);
  chunks.has_following = at::tensor(has_following, at::kFloat).to(device);
  chunks.places = on(device, places);
  return chunks;
}

}  // namespace sftrun::kernels
