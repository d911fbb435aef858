#include <ATen/ATen.h>

#include <cmath>

#include "../operands.h"
#include "../parallel.h"
#include "cuda/launch.h"
#include "noise/embedding_noise_launch.h"
#include "sftrun/core/error.h"
#include "sftrun/core/rng.h"
#include "sftrun/kernels/noise.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_embedding_noise)> launch_embedding_noise(
    "launch_embedding_noise");

constexpr uint32_t kModule = 0xFFFFFFFFU;  // modules with dropout are numbered from 0

/// The high 24 bits as a value in [-1, 1), exact in fp32.
float signed_unit(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23F - 1.0F;
}

void write_row(float* row, int64_t channels, TokenKey token, const NoiseParams& params,
               float magnitude) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(params.seed) ^ params.step,
                                       static_cast<uint32_t>(params.seed >> 32)};
  for (int64_t first = 0; first < channels; first += 4) {
    const Philox4 words = philox4x32(
        {static_cast<uint32_t>(first / 4), token.position, token.document, kModule}, key);
    for (int64_t i = 0; i < std::min<int64_t>(4, channels - first); ++i)
      row[first + i] = magnitude * signed_unit(words[static_cast<size_t>(i)]);
  }
}

at::Tensor noise_on_cpu(const at::Tensor& x, const BatchMetadata& batch,
                        const NoiseParams& params) {
  const int64_t channels = x.size(1);
  at::Tensor noise = at::empty(x.sizes(), at::kFloat);
  float* values = noise.data_ptr<float>();
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t begin = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    const auto magnitude = static_cast<float>(
        params.scaled_alpha / std::sqrt(static_cast<double>((end - begin) * channels)));
    parallel_for(begin, end, 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        write_row(values + row * channels, channels, batch.token_keys[static_cast<size_t>(row)],
                  params, magnitude);
      }
    });
  }
  return noise;
}

void add_noise_on_cuda(const at::Tensor& x, const BatchMetadata& batch, const NoiseParams& params) {
  const at::Tensor& cu_seqlens = batch.cu_seqlens_device;
  const Launch launch(x);
  launch_embedding_noise(cuda_type_of(x), x.data_ptr(),
                         static_cast<const TokenKey*>(batch.token_keys_device.const_data_ptr()),
                         static_cast<const uint32_t*>(batch.step_device.const_data_ptr()),
                         cu_seqlens.const_data_ptr<int32_t>(), cu_seqlens.numel() - 1, x.size(0),
                         x.size(1), params, launch.stream());
  launch.check();
}

}  // namespace

void add_embedding_noise_(at::Tensor& x, const BatchMetadata& batch, double alpha, double scale) {
  require_rows(x);
  const NoiseParams params{batch.dropout_seed, batch.step, scale * alpha};
  if (x.is_cuda()) {
    require_operand(batch.token_keys_device, x, at::kInt);
    require_numel(batch.token_keys_device, 2 * x.size(0));
    require_operand(batch.cu_seqlens_device, x, at::kInt);
    require_operand(batch.step_device, x, at::kInt);
    require_numel(batch.step_device, 1);
    return add_noise_on_cuda(x, batch, params);
  }
  SFTRUN_CHECK_EQ(static_cast<int64_t>(batch.token_keys.size()), x.size(0));
  x.add_(noise_on_cpu(x, batch, params));
}

}  // namespace sftrun::kernels
