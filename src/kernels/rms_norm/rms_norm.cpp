#include <ATen/ATen.h>

#include "cuda/launch.h"
#include "operands.h"
#include "parallel.h"
#include "rms_norm/rms_norm_launch.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_rms_norm_forward)> launch_rms_norm_forward(
    "launch_rms_norm_forward");
const CudaEntry<decltype(cuda::launch_rms_norm_backward)> launch_rms_norm_backward(
    "launch_rms_norm_backward");

/// @param weight [channels]
void require_norm_operands(const at::Tensor& x, const at::Tensor& weight) {
  require_rows(x);
  require_operand(weight, x, x.scalar_type());
  require_numel(weight, x.size(1));
}

std::pair<at::Tensor, at::Tensor> norm_on_cuda(const at::Tensor& x, const at::Tensor& weight,
                                               double eps, double offset, const at::Tensor& copy,
                                               int64_t spare) {
  at::Tensor y = empty_rows(x.size(0), x.size(1), spare, x.options()),
             rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const Launch launch(x);
  launch_rms_norm_forward(cuda_type_of(x),
                          {.x = x.const_data_ptr(),
                           .weight = weight.const_data_ptr(),
                           .y = y.data_ptr(),
                           .copy = copy.defined() ? copy.data_ptr() : nullptr,
                           .rstd = rstd.data_ptr<float>(),
                           .rows = x.size(0),
                           .hidden = x.size(1),
                           .y_stride = y.stride(0),
                           .eps = static_cast<float>(eps),
                           .offset = static_cast<float>(offset)},
                          launch.stream());
  launch.check();
  return {y, rstd};
}

at::Tensor norm_backward_on_cuda(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& weight, const at::Tensor& rstd,
                                 const at::Tensor& residual, double offset, int64_t spare) {
  at::Tensor dx = empty_rows(x.size(0), x.size(1), spare, x.options());
  const Launch launch(x);
  launch_rms_norm_backward(cuda_type_of(x),
                           {.dy = dy.const_data_ptr(),
                            .x = x.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .rstd = rstd.const_data_ptr<float>(),
                            .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                            .dx = dx.data_ptr(),
                            .rows = x.size(0),
                            .hidden = x.size(1),
                            .dy_stride = dy.stride(0),
                            .residual_stride = residual.defined() ? residual.stride(0) : 0,
                            .dx_stride = dx.stride(0),
                            .offset = static_cast<float>(offset)},
                           launch.stream());
  launch.check();
  return dx;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset,
                                                   const at::Tensor& copy, int64_t spare) {
  const ProfileRange range("rms_norm_forward");
  require_norm_operands(x, weight);
  if (copy.defined()) require_on_cuda(x), require_same(copy, x);
  if (spare != 0) require_on_cuda(x);
  if (x.is_cuda()) return norm_on_cuda(x, weight, eps, offset, copy, spare);
  at::Tensor y = at::empty_like(x);
  at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const int64_t hidden = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, x.size(0), grain(hidden), [&](int64_t begin, int64_t end) {
      kernels.rms_norm_forward(data<T>(x) + begin * hidden, data<T>(weight),
                               data<T>(y) + begin * hidden, data<float>(rstd) + begin, end - begin,
                               hidden, static_cast<float>(eps), static_cast<float>(offset));
    });
  });
  return {y, rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset,
                             int64_t spare) {
  const ProfileRange range("rms_norm_backward");
  require_norm_operands(x, weight);
  require_loose_same(dy, x);
  if (residual.defined()) require_loose_same(residual, x);
  require_operand(rstd, x, at::kFloat);
  require_numel(rstd, x.size(0));
  if (spare != 0) require_on_cuda(x);
  if (x.is_cuda()) return norm_backward_on_cuda(dy, x, weight, rstd, residual, offset, spare);
  at::Tensor dx = at::empty_like(x);
  const int64_t hidden = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* beside = residual.defined() ? data<T>(residual) : nullptr;
    parallel_for(0, x.size(0), grain(hidden), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * hidden;
      kernels.rms_norm_backward(data<T>(dy) + first, data<T>(x) + first, data<T>(weight),
                                data<float>(rstd) + begin, beside ? beside + first : nullptr,
                                data<T>(dx) + first, end - begin, hidden,
                                static_cast<float>(offset));
    });
  });
  return dx;
}

at::Tensor empty_rows(int64_t rows, int64_t columns, int64_t spare,
                      const at::TensorOptions& options) {
  return at::empty({rows, columns + spare}, options).narrow(1, 0, columns);
}

at::Tensor product_sums(const at::Tensor& a, const at::Tensor& b, const at::Tensor& row_weights) {
  if (a.is_cuda()) {  // one temporary of the rows; a sum over rows would need another of twice the size
    const at::Tensor product = a.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).mul_(b);
    return at::mv(product.t(), row_weights.defined()
                                   ? row_weights
                                   : at::ones({product.size(0)}, product.options()));
  }
  at::Tensor product = a.to(at::kFloat) * b.to(at::kFloat);
  if (row_weights.defined()) product.mul_(row_weights.unsqueeze(1));
  return product.sum(0);
}

at::Tensor rms_norm_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd) {
  const ProfileRange range("rms_norm_weight_grad");
  return product_sums(dy, x, rstd);
}

}  // namespace sftrun::kernels
