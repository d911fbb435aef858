#include <ATen/ATen.h>

#include "cuda/launch.h"
#include "low_rank/low_rank_sum_launch.h"
#include "operands.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_low_rank_sum)> launch_low_rank_sum("launch_low_rank_sum");

/// Whether every row of 16-bit elements begins at 16 bytes and has a multiple of 8 of them.
/// @param x either of its strides is 1
bool has_aligned_rows(const at::Tensor& x) {
  constexpr int64_t kEights = 8;
  const int64_t along = x.stride(1) == 1 ? 1 : 0;
  return x.stride(along) == 1 && x.size(along) % kEights == 0 &&
         x.stride(1 - along) % kEights == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

bool kernel_serves(const at::Tensor& y, const at::Tensor& low, const at::Tensor& factor,
                   const at::Tensor& base) {
  constexpr int64_t kMaxRows = int64_t{256} * 65535;
  return y.is_cuda() && y.scalar_type() != at::kFloat && low.size(1) <= cuda::kMaxLowRank &&
         y.size(0) <= kMaxRows && has_aligned_rows(y) && has_aligned_rows(low) &&
         has_aligned_rows(factor) && (!base.defined() || has_aligned_rows(base));
}

/// A matrix of y's dtype, on its device.
void require_summand(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK(x.device() == y.device() && x.scalar_type() == y.scalar_type(), "an operand is ",
              x.scalar_type(), " on ", x.device(), ", not ", y.scalar_type(), " on ", y.device());
  TORCH_CHECK(x.dim() == 2, "an operand of shape ", x.sizes(), " in place of a matrix");
}

void add_on_cuda(const at::Tensor& y, const at::Tensor& low, const at::Tensor& factor,
                 const at::Tensor& base) {
  const bool is_transposed = factor.stride(1) != 1;
  const Launch launch(y);
  launch_low_rank_sum(cuda_type_of(y),
                      {.y = y.data_ptr(),
                       .base = base.defined() ? base.const_data_ptr() : nullptr,
                       .low = low.const_data_ptr(),
                       .factor = factor.const_data_ptr(),
                       .rows = y.size(0),
                       .columns = y.size(1),
                       .rank = low.size(1),
                       .y_stride = y.stride(0),
                       .base_stride = base.defined() ? base.stride(0) : 0,
                       .low_stride = low.stride(0),
                       .factor_stride = factor.stride(is_transposed ? 1 : 0),
                       .is_transposed = is_transposed},
                      launch.stream());
  launch.check();
}

}  // namespace

void add_low_rank_(at::Tensor y, const at::Tensor& low, const at::Tensor& factor,
                   const at::Tensor& base) {
  const ProfileRange range("add_low_rank");
  for (const at::Tensor* operand : {static_cast<const at::Tensor*>(&y), &low, &factor})
    require_summand(*operand, y);
  require_loose_rows(y);
  require_loose_rows(low);
  TORCH_CHECK(
      low.size(0) == y.size(0) && low.size(1) == factor.size(0) && factor.size(1) == y.size(1),
      "product of ", low.sizes(), " and ", factor.sizes(), " added to ", y.sizes());
  if (base.defined()) require_loose_same(base, y);
  if (kernel_serves(y, low, factor, base)) return add_on_cuda(y, low, factor, base);
  if (base.defined()) y.add_(base);
  y.addmm_(low, factor);
}

}  // namespace sftrun::kernels
