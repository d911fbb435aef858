#include "experts/shared_expert.h"

#include <ATen/ATen.h>

#include "linear/fused_linears.h"
#include "sftrun/kernels/expert_ops.h"

namespace sftrun::layers {
namespace {

kernels::GatedOutputGrads through_weight(const at::Tensor& dy, const SharedExpertRun& run) {
  if (dy.is_cuda()) return kernels::gated_output_backward(dy.contiguous(), run.output, run.logit);
  const at::Tensor along = (dy.to(at::kFloat) * run.output.to(at::kFloat)).sum(-1, true);
  return {(dy.to(at::kFloat) * run.weight).to(dy.scalar_type()),
          (along * run.weight * (1 - run.weight)).to(dy.scalar_type())};
}

}  // namespace

at::Tensor shared_expert_output(const SharedExpert& expert, kernels::Gating gating,
                                const at::Tensor& x, const BatchContext& batch,
                                SharedExpertRun& run) {
  auto inner = linears_forward(x, {&expert.gate, &expert.up}, batch, &run.inner_low);
  run.gate = std::move(inner[0]);
  run.up = std::move(inner[1]);
  run.output = linears_forward(kernels::gated_forward(gating, run.gate, run.up), {&expert.down},
                               batch, &run.down_low)[0];
  at::Tensor logit = linears_forward(x, {&expert.router}, batch, &run.router_low)[0];
  if (x.is_cuda()) run.logit = logit;
  return logit;
}

at::Tensor shared_expert_forward(const SharedExpert& expert, kernels::Gating gating,
                                 const at::Tensor& x, const BatchContext& batch,
                                 SharedExpertRun& run) {
  run.weight = at::sigmoid(shared_expert_output(expert, gating, x, batch, run).to(at::kFloat));
  return run.output.to(at::kFloat) * run.weight;
}

at::Tensor shared_expert_backward(const SharedExpert& expert, kernels::Gating gating,
                                  SharedExpertRun run, const at::Tensor& dy, const at::Tensor& x,
                                  const BatchContext& batch, bool needs_dx) {
  const LinearGroup inner = {&expert.gate, &expert.up}, down = {&expert.down},
                    router = {&expert.router};
  const auto [d_output, d_logit] = through_weight(dy, run);
  at::Tensor dx = linears_backward({d_logit}, x, run.router_low, router, batch, needs_dx);
  if (!needs_dx && !trains(inner) && !trains(down)) return {};
  const at::Tensor h =
      trains(down) ? kernels::gated_forward(gating, run.gate, run.up) : at::Tensor();
  const bool through_down = needs_dx || trains(inner);
  const at::Tensor dh = linears_backward({d_output}, h, run.down_low, down, batch, through_down);
  if (!through_down) return {};
  kernels::gated_backward_(gating, dh, run.gate, run.up);  // overwritten by their gradients
  const at::Tensor d_inner =
      linears_backward({run.gate, run.up}, x, run.inner_low, inner, batch, needs_dx);
  return needs_dx ? dx.add_(d_inner) : at::Tensor();
}

}  // namespace sftrun::layers
