#include <ATen/ATen.h>

#include "experts/mixture_parts.h"
#include "experts/shared_expert.h"
#include "sftrun/kernels/expert_ops.h"

namespace sftrun::layers {
namespace {

at::Tensor factors_of(const Mixture& mixture) {
  if (!mixture.expert_scale.defined()) return {};
  return mixture.expert_scale.weight.to(at::kFloat).contiguous();
}

at::Tensor times_experts(const at::Tensor& x, const ExpertMatrix& matrix,
                         const kernels::Routes& routes, bool adapters) {
  kernels::GroupedBeside adapter;
  if (adapters && matrix.lora)
    adapter = {adapter_columns(x, matrix, routes), matrix.lora->b->compute};
  at::Tensor y = kernels::grouped_matmul(x, stack_of(matrix, routes.num_experts()),
                                         /*transposed=*/true, routes, adapter);
  if (matrix.bias.defined()) kernels::add_expert_bias_(y, matrix.bias.weight, routes);
  return y;
}

/// Gradients of x and of the scaled adapter columns; undefined if not needed.
struct ThroughMatrix {
  at::Tensor dx, d_low;
};
ThroughMatrix through_experts(const at::Tensor& dy, const ExpertMatrix& matrix,
                              const kernels::Routes& routes, bool needs_dx) {
  ThroughMatrix d;
  if (matrix.lora) {
    d.d_low = kernels::grouped_matmul(dy, matrix.lora->b->compute, /*transposed=*/false, routes);
    if (matrix.lora->scale != 1) d.d_low.mul_(matrix.lora->scale);
  }
  if (!needs_dx) return d;
  kernels::GroupedBeside adapter;
  if (matrix.lora) adapter = {d.d_low, matrix.lora->a->compute};
  d.dx = kernels::grouped_matmul(dy, stack_of(matrix, routes.num_experts()), /*transposed=*/false,
                                 routes, adapter);
  return d;
}

/// Adds to the parameters' gradients.
/// @param x input rows, multiplied by the routing weights if there are any; read if the matrix or
/// its adapter trains
/// @param weights routing weights, for the bias; undefined: 1
void add_experts_grads(const ExpertMatrix& matrix, const at::Tensor& dy, const at::Tensor& d_low,
                       const at::Tensor& x, const at::Tensor& weights,
                       const kernels::Routes& routes) {
  if (matrix.parameter) kernels::add_grouped_matmul_tn_(matrix.parameter->grad, dy, x, routes);
  if (matrix.bias.parameter)
    kernels::add_expert_sums_(matrix.bias.parameter->grad, dy, weights, routes);
  if (!matrix.lora) return;
  kernels::add_grouped_matmul_tn_(matrix.lora->b->grad, dy, adapter_columns(x, matrix, routes),
                                  routes);
  kernels::add_grouped_matmul_tn_(matrix.lora->a->grad, d_low, x, routes);
}

bool reads_input(const ExpertMatrix& matrix) {
  return matrix.parameter != nullptr || matrix.lora.has_value();
}

void add_scale_grad(const Mixture& mixture, const MixtureRun& run, const at::Tensor& d_scaled) {
  if (mixture.expert_scale.parameter == nullptr) return;
  const at::Tensor terms = d_scaled * run.choice.weights;
  kernels::add_expert_sums_(mixture.expert_scale.parameter->grad,
                            at::ones({terms.numel(), 1}, terms.options()), terms, run.routes);
}

/// Gradient of the scaled weights -> gradient of the router's product.
at::Tensor logits_backward(const Mixture& mixture, const MixtureRun& run,
                           const at::Tensor& d_scaled, const BatchContext& batch) {
  add_scale_grad(mixture, run, d_scaled);
  return kernels::route_tokens_backward(run.logits, run.choice, factors_of(mixture),
                                        mixture.normalise, d_scaled, balance_grad(batch),
                                        mixture.router_scale);
}

/// What the experts of all ranks add.
at::Tensor summed(at::Tensor of_rank, const Mixture& mixture) {
  if (mixture.ranks) mixture.ranks->sum(of_rank);
  return of_rank;
}

}  // namespace

at::Tensor mixture_forward_on_device(const Mixture& mixture, kernels::Gating gating,
                                     const at::Tensor& x, const BatchContext& batch,
                                     MixtureRun& run) {
  run.logits = router_logits(mixture, x, batch, run);
  run.choice =
      kernels::route_tokens(run.logits, factors_of(mixture), mixture.top_k, mixture.normalise);
  const int64_t num_experts = run.logits.size(1);
  run.routes = kernels::sort_routes(run.choice.chosen, num_experts);
  const kernels::Routes& routes = run.routes;
  if (batch.shared_state && batch.shared_state->balance.counts)
    count_choices(batch.shared_state->balance, at::softmax(run.logits, -1), routes);
  run.gate_up = times_experts(kernels::spread_rows(x.contiguous(), routes), mixture.gate_up, routes,
                              batch.adapters);
  const int64_t inner = run.gate_up.size(1) / 2;
  const at::Tensor h = kernels::gated_forward(gating, run.gate_up.narrow(1, 0, inner),
                                              run.gate_up.narrow(1, inner, inner));
  kernels::RowSum sum{times_experts(h, mixture.down, routes, batch.adapters),
                      routes.rows,
                      run.choice.scaled,
                      {},
                      {},
                      {}};
  if (mixture.shared.defined()) {
    shared_expert_output(mixture.shared, gating, x, batch, run.shared);
    if (mixture.ranks) {  // the shared expert's output is that of all ranks already
      const at::Tensor y = summed(kernels::sum_rows(sum), mixture);
      return y.add_(run.shared.output * at::sigmoid(run.shared.logit));
    }
    sum.beside = run.shared.output, sum.logits = run.shared.logit;
  }
  return summed(kernels::sum_rows(sum), mixture);
}

MixtureGrads mixture_backward_on_device(const Mixture& mixture, kernels::Gating gating,
                                        MixtureRun run, const at::Tensor& dy, const at::Tensor& x,
                                        const BatchContext& batch, bool needs_dx) {
  const kernels::Routes& routes = run.routes;
  // First without the routing weights, whose gradient is <expert output, dy>.
  at::Tensor d_outputs = kernels::spread_rows(dy.contiguous(), routes);
  ThroughMatrix down = through_experts(d_outputs, mixture.down, routes, /*needs_dx=*/true);
  kernels::WeightedGated gated{down.dx, run.gate_up, run.choice.scaled, {}, {}};
  if (mixture.down.bias.defined()) gated.bias = mixture.down.bias.weight, gated.dy = d_outputs;
  kernels::WeightedGatedGrads d_gated =
      kernels::weighted_gated_backward_(gating, gated, routes, reads_input(mixture.down));
  add_experts_grads(mixture.down, d_outputs, down.d_low, d_gated.weighted_h, run.choice.scaled,
                    routes);
  d_gated.d_weights = summed(d_gated.d_weights, mixture);
  down = {}, gated = {};
  d_outputs.reset(), d_gated.weighted_h.reset();

  ThroughMatrix d_rows = through_experts(run.gate_up, mixture.gate_up, routes, needs_dx);
  at::Tensor rows =
      reads_input(mixture.gate_up) ? kernels::spread_rows(x.contiguous(), routes) : at::Tensor();
  add_experts_grads(mixture.gate_up, run.gate_up, d_rows.d_low, rows, {}, routes);
  rows.reset(), run.gate_up.reset();

  const MixtureGrads d = router_backward(
      mixture, run, logits_backward(mixture, run, d_gated.d_weights, batch), x, batch, needs_dx);
  at::Tensor d_shared;
  if (mixture.shared.defined()) {
    d_shared = shared_expert_backward(mixture.shared, gating, std::move(run.shared), dy, x, batch,
                                      needs_dx);
  }
  if (!needs_dx) return {};
  if (mixture.ranks) {
    at::Tensor dx = summed(kernels::sum_rows({d_rows.dx, routes.rows, {}, {}, {}, {}}), mixture);
    for (const at::Tensor& of_all : {d.dx, d_shared})
      if (of_all.defined()) dx.add_(of_all);
    return {dx, d.d_routed_by};
  }
  return {kernels::sum_rows({d_rows.dx, routes.rows, {}, d.dx, d_shared, {}}), d.d_routed_by};
}

}  // namespace sftrun::layers
