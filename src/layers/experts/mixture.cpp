#include <ATen/ATen.h>

#include "experts/mixture_parts.h"
#include "experts/shared_expert.h"

namespace sftrun::layers {
namespace {

at::Tensor apply(const at::Tensor& x, const ExpertMatrix& matrix, const kernels::Routes& routes,
                 bool adapters) {
  at::Tensor y = kernels::grouped_matmul(x, stack_of(matrix, routes.num_experts()),
                                         /*transposed=*/true, routes);
  if (adapters && matrix.lora) {
    const at::Tensor low = adapter_columns(x, matrix, routes);
    y.add_(kernels::grouped_matmul(low, matrix.lora->b->compute, /*transposed=*/true, routes));
  }
  if (matrix.bias.defined()) y.add_(matrix.bias.weight.index_select(0, routes.experts));
  return y;
}

/// Returns the gradient of x. Parameter gradients use `dy * row_weights`.
at::Tensor apply_backward(const at::Tensor& dy, const at::Tensor& row_weights, const at::Tensor& x,
                          const ExpertMatrix& matrix, const kernels::Routes& routes) {
  const auto weighted = [&](const at::Tensor& rows) {
    return row_weights.defined() ? rows * row_weights : rows;
  };
  if (matrix.parameter)
    kernels::add_grouped_matmul_tn_(matrix.parameter->grad, weighted(dy), x, routes);
  if (matrix.bias.parameter)
    matrix.bias.parameter->grad.index_add_(0, routes.experts, weighted(dy).to(at::kFloat));
  at::Tensor dx = kernels::grouped_matmul(dy, stack_of(matrix, routes.num_experts()),
                                          /*transposed=*/false, routes);
  if (!matrix.lora) return dx;
  const ExpertLora& lora = *matrix.lora;
  const at::Tensor d_low =
      kernels::grouped_matmul(dy, lora.b->compute, /*transposed=*/false, routes).mul_(lora.scale);
  kernels::add_grouped_matmul_tn_(lora.b->grad, weighted(dy), adapter_columns(x, matrix, routes),
                                  routes);
  kernels::add_grouped_matmul_tn_(lora.a->grad, weighted(d_low), x, routes);
  return dx.add_(kernels::grouped_matmul(d_low, lora.a->compute, /*transposed=*/false, routes));
}

/// Softmax over all experts, then the top_k, normalised by their sum: equal to a softmax over the
/// chosen ones. @return all probabilities [T, experts]
at::Tensor choose(const Mixture& mixture, MixtureRun& run) {
  const at::Tensor probabilities = at::softmax(run.logits, -1);
  std::tie(run.choice.weights, run.choice.chosen) = at::topk(probabilities, mixture.top_k, -1);
  if (mixture.normalise)
    run.choice.weights = run.choice.weights / run.choice.weights.sum(-1, /*keepdim=*/true);
  return probabilities;
}

/// Gradient of the probabilities [T, experts] or [experts] -> gradient of the router's logits.
at::Tensor softmax_backward(const MixtureRun& run, const at::Tensor& d) {
  const at::Tensor probabilities = at::softmax(run.logits, -1);
  return probabilities * (d - (probabilities * d).sum(-1, /*keepdim=*/true));
}

/// Gradients of the weights [T, top_k] and of all probabilities ([experts], for the load-balancing
/// loss) -> gradient of the router's logits.
at::Tensor logits_backward(const Mixture& mixture, const MixtureRun& run,
                           const at::Tensor& d_weights, const at::Tensor& d_probability) {
  const at::Tensor none = at::zeros_like(run.logits);
  if (mixture.normalise) {
    const at::Tensor mean = (run.choice.weights * d_weights).sum(-1, /*keepdim=*/true);
    const at::Tensor d =
        none.scatter(1, run.choice.chosen, run.choice.weights * (d_weights - mean));
    return d_probability.defined() ? d + softmax_backward(run, d_probability) : d;
  }
  const at::Tensor d = none.scatter(1, run.choice.chosen, d_weights);
  return softmax_backward(run, d_probability.defined() ? d + d_probability : d);
}

/// Weights of the chosen experts times their expert_scale [T, top_k].
at::Tensor scaled_weights(const Mixture& mixture, const MixtureRun& run) {
  if (!mixture.expert_scale.defined()) return run.choice.weights;
  const at::Tensor factors = mixture.expert_scale.weight.to(at::kFloat);
  return run.choice.weights *
         factors.index_select(0, run.choice.chosen.flatten()).view_as(run.choice.weights);
}

/// Gradient of the scaled weights -> gradient of the weights.
at::Tensor unscaled_backward(const Mixture& mixture, const MixtureRun& run,
                             const at::Tensor& d_scaled) {
  if (!mixture.expert_scale.defined()) return d_scaled;
  const at::Tensor chosen = run.choice.chosen.flatten();
  if (Parameter* parameter = mixture.expert_scale.parameter)
    parameter->grad.index_add_(0, chosen, (d_scaled * run.choice.weights).flatten());
  const at::Tensor factors = mixture.expert_scale.weight.to(at::kFloat);
  return d_scaled * factors.index_select(0, chosen).view_as(d_scaled);
}

/// Weight of each row [T * top_k, 1].
at::Tensor weights_by_route(const at::Tensor& weights, const kernels::Routes& routes) {
  return weights.reshape({-1}).index_select(0, routes.slots).unsqueeze(1);
}

}  // namespace

at::Tensor mixture_forward(const Mixture& mixture, kernels::Gating gating, const at::Tensor& x,
                           const BatchContext& batch, MixtureRun* keep,
                           const at::Tensor& routed_by) {
  MixtureRun run;
  run.routed_by = routed_by;
  if (x.is_cuda()) {
    at::Tensor y = mixture_forward_on_device(mixture, gating, x, batch, run);
    if (keep) *keep = std::move(run);
    return y;
  }
  run.logits = router_logits(mixture, x, batch, run);
  const at::Tensor probabilities = choose(mixture, run);
  run.routes = kernels::routes_of(run.choice.chosen, run.logits.size(1));
  if (batch.shared_state) count_choices(batch.shared_state->balance, probabilities, run.routes);
  const at::Tensor gate_up =
      apply(x.index_select(0, run.routes.tokens), mixture.gate_up, run.routes, batch.adapters);
  const int64_t inner = gate_up.size(1) / 2;
  run.gate = gate_up.narrow(1, 0, inner).contiguous();
  run.up = gate_up.narrow(1, inner, inner).contiguous();
  const at::Tensor outputs = apply(kernels::gated_forward(gating, run.gate, run.up), mixture.down,
                                   run.routes, batch.adapters);
  const at::Tensor weights = weights_by_route(scaled_weights(mixture, run), run.routes);
  at::Tensor y = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  y.index_add_(0, run.routes.tokens, outputs.to(at::kFloat) * weights);
  if (mixture.ranks) mixture.ranks->sum(y);
  if (mixture.shared.defined())
    y.add_(shared_expert_forward(mixture.shared, gating, x, batch, run.shared));
  if (keep) *keep = std::move(run);
  return y.to(x.scalar_type());
}

MixtureGrads mixture_backward(const Mixture& mixture, kernels::Gating gating, MixtureRun run,
                              const at::Tensor& dy, const at::Tensor& x, const BatchContext& batch,
                              bool needs_dx) {
  if (x.is_cuda()) {
    return mixture_backward_on_device(mixture, gating, std::move(run), dy, x, batch, needs_dx);
  }
  const kernels::Routes& routes = run.routes;
  const at::Tensor weights = weights_by_route(scaled_weights(mixture, run), routes);
  at::Tensor h = kernels::gated_forward(gating, run.gate, run.up);
  const at::Tensor d_outputs = dy.index_select(0, routes.tokens);
  // First without the routing weights, whose gradient is <expert output, dy>.
  at::Tensor dh = apply_backward(d_outputs, weights.to(dy.scalar_type()), h, mixture.down, routes);
  at::Tensor d_weight = (h.to(at::kFloat) * dh.to(at::kFloat)).sum(-1);
  if (mixture.down.bias.defined()) {
    const at::Tensor biases = mixture.down.bias.weight.index_select(0, routes.experts);
    d_weight.add_((d_outputs.to(at::kFloat) * biases).sum(-1));
  }
  if (mixture.ranks) mixture.ranks->sum(d_weight);
  h.reset();
  dh.mul_(weights);
  kernels::gated_backward_(gating, dh, run.gate, run.up);  // overwritten by their gradients
  const at::Tensor rows = x.index_select(0, routes.tokens);
  const at::Tensor d_rows =
      apply_backward(at::cat({run.gate, run.up}, 1), {}, rows, mixture.gate_up, routes);
  const at::Tensor d_weights = unscaled_backward(
      mixture, run,
      at::empty_like(d_weight).index_copy_(0, routes.slots, d_weight).view_as(run.choice.weights));
  const at::Tensor d_logits = logits_backward(mixture, run, d_weights, balance_grad(batch));
  MixtureGrads d =
      router_backward(mixture, run, d_logits.mul_(mixture.router_scale), x, batch, needs_dx);
  at::Tensor dx = needs_dx && !d.dx.defined() ? at::zeros_like(x) : d.dx;
  if (mixture.shared.defined()) {
    const at::Tensor d_shared = shared_expert_backward(
        mixture.shared, gating, std::move(run.shared), dy, x, batch, needs_dx);
    if (needs_dx) dx.add_(d_shared);
  }
  if (!needs_dx) return {};
  if (mixture.ranks) {
    const at::Tensor through_experts = at::zeros_like(x).index_add_(0, routes.tokens, d_rows);
    mixture.ranks->sum(through_experts);
    return {dx.add_(through_experts), d.d_routed_by};
  }
  return {dx.index_add_(0, routes.tokens, d_rows), d.d_routed_by};
}

}  // namespace sftrun::layers
