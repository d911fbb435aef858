#include <ATen/ATen.h>

#include <cmath>

#include "cuda/launch.h"
#include "dropout/dropout_launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_dropout)> launch_dropout("launch_dropout");

at::Tensor dropout_on_cuda(const at::Tensor& x, const BatchMetadata& batch,
                           const DropoutParams& params) {
  static_assert(sizeof(TokenKey) == 2 * sizeof(int32_t));
  at::Tensor y = at::empty_like(x);
  const Launch launch(x);
  launch_dropout(cuda_type_of(x), x.data_ptr(), y.data_ptr(),
                 static_cast<const TokenKey*>(batch.token_keys_device.data_ptr()),
                 static_cast<const uint32_t*>(batch.step_device.const_data_ptr()), x.size(0),
                 x.size(1), params, launch.stream());
  launch.check();
  return y;
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const BatchMetadata& batch, double probability,
                   uint32_t module) {
  const ProfileRange range("dropout");
  require_rows(x);
  if (x.is_cuda()) {
    require_operand(batch.token_keys_device, x, at::kInt);
    require_numel(batch.token_keys_device, 2 * x.size(0));
    require_operand(batch.step_device, x, at::kInt);
    require_numel(batch.step_device, 1);
  }
  DropoutParams params;
  params.seed = batch.dropout_seed;
  params.step = batch.step;
  params.module = module;
  params.threshold = static_cast<uint32_t>(std::lround(probability * 65536.0));
  params.scale = static_cast<float>(65536.0 / (65536.0 - params.threshold));
  if (x.is_cuda()) return dropout_on_cuda(x, batch, params);
  SFTRUN_CHECK_EQ(static_cast<int64_t>(batch.token_keys.size()), x.size(0));
  at::Tensor y = at::empty_like(x);
  const int64_t channels = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, x.size(0), grain(channels), [&](int64_t begin, int64_t end) {
      kernels.dropout(data<T>(x) + begin * channels, data<T>(y) + begin * channels,
                      batch.token_keys.data() + begin, end - begin, channels, params);
    });
  });
  return y;
}

}  // namespace sftrun::kernels
