#include "sftrun/kernels/dora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

at::Tensor row_squares(const Linear& linear) {
  const at::NoGradGuard no_grad;
  return linear.matrix().values(at::kFloat).to(at::kFloat).square().sum(1);
}

at::Tensor row_lengths(const Linear& linear) {
  const LoraAdapter& lora = *linear.lora;
  if (lora.lengths.defined()) return lora.lengths;
  const at::NoGradGuard no_grad;
  const at::Tensor a = lora.a->master.detach(), b = lora.b->master.detach() * lora.scale;
  // Products by a matrix in FP8 round what they multiply; these are W's alone.
  const bool is_fp8 = linear.quantized && linear.quantized->format == QuantFormat::kFp8;
  const at::Tensor compute = lora.a->compute.detach();
  const Matrix w = is_fp8 ? Matrix(linear.matrix().values(compute.scalar_type())) : linear.matrix();
  const at::Tensor a_w = matmul_sum({{compute, w, true}});  // [r, out]
  const at::Tensor crossed = (a_w.t().to(at::kFloat) * b).sum(1);
  const at::Tensor own = (at::mm(b, at::mm(a, a.t())) * b).sum(1);
  return (lora.squares + 2 * crossed + own).clamp_min_(0).sqrt_();
}

at::Tensor row_gains(const LoraAdapter& lora, const at::Tensor& lengths) {
  return lora.magnitude->master.detach() / lengths;
}

}  // namespace sftrun::kernels
