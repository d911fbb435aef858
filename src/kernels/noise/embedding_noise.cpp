#include <ATen/ATen.h>

#include <cmath>

#include "../parallel.h"
#include "sftrun/core/error.h"
#include "sftrun/core/rng.h"
#include "sftrun/kernels/noise.h"

namespace sftrun::kernels {
namespace {

constexpr uint32_t kModule = 0xFFFFFFFFU;  // modules with dropout are numbered from 0

/// 24 bits, all that fp32 holds of a number in [-1, 1).
float signed_unit(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23F - 1.0F;
}

void write_row(float* row, int64_t channels, TokenKey token, const BatchContext& batch,
               float magnitude) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(batch.dropout_seed) ^ batch.step,
                                       static_cast<uint32_t>(batch.dropout_seed >> 32)};
  for (int64_t first = 0; first < channels; first += 4) {
    const Philox4 words = philox4x32(
        {static_cast<uint32_t>(first / 4), token.position, token.document, kModule}, key);
    for (int64_t i = 0; i < std::min<int64_t>(4, channels - first); ++i)
      row[first + i] = magnitude * signed_unit(words[static_cast<size_t>(i)]);
  }
}

}  // namespace

void add_embedding_noise_(at::Tensor& x, const BatchContext& batch, double alpha, double scale) {
  SFTRUN_CHECK_EQ(static_cast<int64_t>(batch.token_keys.size()), x.size(0));
  const int64_t channels = x.size(1);
  at::Tensor noise = at::empty(x.sizes(), at::kFloat);
  float* values = noise.data_ptr<float>();
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t begin = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    const auto magnitude = static_cast<float>(
        scale * alpha / std::sqrt(static_cast<double>((end - begin) * channels)));
    parallel_for(begin, end, 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        write_row(values + row * channels, channels, batch.token_keys[static_cast<size_t>(row)],
                  batch, magnitude);
      }
    });
  }
  x.add_(noise.to(x.device()));
}

}  // namespace sftrun::kernels
