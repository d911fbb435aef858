#include "experts/mixture_parts.h"

#include <ATen/ATen.h>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"

namespace sftrun::layers {
namespace {

/// x * scale in place.
at::Tensor scaled_in_place(at::Tensor x, double scale) {
  return scale == 1 ? x : x.mul_(scale);
}

/// Input of the router [T, hidden] fp32, after its own norm if it has one.
at::Tensor router_input(const Mixture& mixture, const at::Tensor& x, MixtureRun& run) {
  if (!run.routed_by.defined()) return x.to(at::kFloat);
  const Normed in = normed(run.routed_by, mixture.router_norm);
  run.router_rstd = in.rstd;
  return in.y.to(at::kFloat);
}

}  // namespace

at::Tensor router_logits(const Mixture& mixture, const at::Tensor& x, const BatchContext& batch,
                         MixtureRun& run) {
  return scaled_in_place(
      linears_forward(router_input(mixture, x, run), {&mixture.router}, batch, &run.router_low)[0],
      mixture.router_scale);
}

MixtureGrads router_backward(const Mixture& mixture, MixtureRun& run, const at::Tensor& d_logits,
                             const at::Tensor& x, const BatchContext& batch, bool needs_dx) {
  const at::Tensor read = mixture.router.trains() ? router_input(mixture, x, run) : at::Tensor();
  const bool has_norm = run.routed_by.defined();
  const bool through = needs_dx || (has_norm && mixture.router_norm.parameter != nullptr);
  at::Tensor d_read =
      linears_backward({d_logits}, read, run.router_low, {&mixture.router}, batch, through);
  if (d_read.defined()) d_read = d_read.to(x.scalar_type());
  if (!has_norm || !through) return {d_read, {}};
  return {{},
          norm_backward(d_read, run.routed_by, mixture.router_norm, run.router_rstd, {}, needs_dx)};
}

at::Tensor balance_grad(const BatchContext& batch) {
  return batch.shared_state ? batch.shared_state->balance.d_probability : at::Tensor();
}

kernels::ExpertStack stack_of(const ExpertMatrix& matrix, int64_t num_experts) {
  return matrix.quantized ? kernels::ExpertStack(*matrix.quantized, num_experts)
                          : kernels::ExpertStack(matrix.weight);
}

at::Tensor adapter_columns(const at::Tensor& x, const ExpertMatrix& matrix,
                           const kernels::Routes& routes) {
  return scaled_in_place(
      kernels::grouped_matmul(x, matrix.lora->a->compute, /*transposed=*/true, routes),
      matrix.lora->scale);
}

}  // namespace sftrun::layers
