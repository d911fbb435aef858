#include "linear/fused_norms.h"

#include <ATen/ATen.h>

namespace sftrun::layers {

Normed normed(const at::Tensor& x, const Norm& norm, const at::Tensor& copy, int64_t spare) {
  if (!norm.defined()) return {x, {}};
  auto [y, rstd] = kernels::rms_norm_forward(x, norm.weight, norm.eps, norm.offset, copy, spare);
  return {y, rstd};
}

kernels::NormFactors factors_of(const Norm& norm, const at::Tensor& rstd) {
  if (!norm.defined()) return {};
  return {rstd, norm.weight, norm.offset};
}

at::Tensor normed_again(const at::Tensor& x, const Norm& norm, const LinearGroup& group) {
  return trains(group) ? normed(x, norm).y : at::Tensor();
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& rstd, const at::Tensor& residual_grad, bool needs_dx,
                         int64_t spare) {
  if (!norm.defined()) {
    if (!needs_dx) return {};
    return residual_grad.defined() ? dy + residual_grad : dy;
  }
  if (norm.parameter) norm.parameter->grad.add_(kernels::rms_norm_weight_grad(dy, x, rstd));
  if (!needs_dx) return {};
  return kernels::rms_norm_backward(dy, x, norm.weight, rstd, residual_grad, norm.offset, spare);
}

at::Tensor rows_of(const at::Tensor& x, const Norm& norm) {
  return x.view({-1, norm.weight.numel()});
}

Normed normed_heads(const at::Tensor& x, const Norm& norm) {
  if (!norm.defined()) return {x, {}};
  const Normed rows = normed(rows_of(x, norm), norm);
  return {rows.y.view_as(x), rows.rstd};
}

}  // namespace sftrun::layers
