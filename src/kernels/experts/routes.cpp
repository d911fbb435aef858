#include <ATen/ATen.h>

#include <limits>

#include "cuda/launch.h"
#include "experts/expert_operands.h"
#include "experts/routes_launch.h"
#include "operands.h"
#include "sftrun/kernels/expert_ops.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_route_tokens)> launch_route_tokens("launch_route_tokens");
const CudaEntry<decltype(cuda::launch_route_tokens_backward)> launch_route_tokens_backward(
    "launch_route_tokens_backward");
const CudaEntry<decltype(cuda::launch_sort_routes)> launch_sort_routes("launch_sort_routes");

void require_router(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k) {
  require_rows(logits);
  require_operand(logits, logits, at::kFloat);
  TORCH_CHECK(0 < top_k && top_k <= logits.size(1), top_k, " of ", logits.size(1), " experts");
  if (!factors.defined()) return;
  require_operand(factors, logits, at::kFloat);
  require_numel(factors, logits.size(1));
}

cuda::RouterChoice router_choice(const at::Tensor& logits, const TokenChoice& choice,
                                 bool normalise) {
  return {.tokens = logits.size(0),
          .experts = logits.size(1),
          .top_k = choice.chosen.size(1),
          .normalise = normalise,
          .chosen = choice.chosen.data_ptr<int32_t>(),
          .weights = choice.weights.data_ptr<float>(),
          .scaled = choice.scaled.data_ptr<float>()};
}

}  // namespace

TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise) {
  require_router(logits, factors, top_k);
  TokenChoice choice;
  choice.chosen = at::empty({logits.size(0), top_k}, logits.options().dtype(at::kInt));
  choice.weights = at::empty({logits.size(0), top_k}, logits.options());
  choice.scaled = factors.defined() ? at::empty_like(choice.weights) : choice.weights;
  const Launch launch(logits);
  launch_route_tokens(router_choice(logits, choice, normalise), floats(logits), floats(factors),
                      launch.stream());
  launch.check();
  return choice;
}

at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale) {
  require_token_rows(choice.chosen, logits);
  require_router(logits, factors, choice.chosen.size(1));
  require_shape(choice.chosen, {logits.size(0), choice.chosen.size(1)});
  require_weights(choice.weights, logits, choice.chosen.sizes());
  require_weights(d_scaled, logits, choice.chosen.sizes());
  if (d_probability.defined()) require_weights(d_probability, logits, {logits.size(1)});
  at::Tensor d_logits = at::empty_like(logits);
  const Launch launch(logits);
  launch_route_tokens_backward(router_choice(logits, choice, normalise),
                               {.logits = floats(logits),
                                .factors = floats(factors),
                                .d_scaled = floats(d_scaled),
                                .d_probability = floats(d_probability),
                                .d_logits = d_logits.data_ptr<float>(),
                                .scale = static_cast<float>(scale)},
                               launch.stream());
  launch.check();
  return d_logits;
}

Routes sort_routes(const at::Tensor& chosen, int64_t num_experts) {
  require_token_rows(chosen, chosen);
  TORCH_CHECK(num_experts > 0 && chosen.numel() <= std::numeric_limits<int32_t>::max(),
              chosen.numel(), " routes to ", num_experts, " experts");
  Routes routes;
  routes.slots = at::empty({chosen.numel()}, chosen.options());
  routes.experts = at::empty({chosen.numel()}, chosen.options());
  routes.ends = at::empty({num_experts}, chosen.options());
  routes.rows = at::empty_like(chosen);
  const Launch launch(chosen);
  launch_sort_routes({.routes = chosen.numel(),
                      .num_experts = num_experts,
                      .ends = routes.ends.data_ptr<int32_t>(),
                      .slots = routes.slots.data_ptr<int32_t>(),
                      .experts = routes.experts.data_ptr<int32_t>(),
                      .rows = routes.rows.data_ptr<int32_t>()},
                     indices(chosen), launch.stream());
  launch.check();
  return routes;
}

}  // namespace sftrun::kernels
