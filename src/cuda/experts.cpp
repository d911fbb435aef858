#include "entries.h"
#include "launch_context.h"

/// Mixtures of experts: products by expert, routes, sums of rows.
namespace sftrun::kernels::plugin {

at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& w, bool transposed,
                          const at::Tensor& ends) {
  const cuda::GroupedShape shape{x.size(0), x.size(1), w.size(transposed ? 1 : 2), w.size(0)};
  at::Tensor y = at::empty({shape.rows, shape.columns}, x.options());
  const Launch launch(x);
  cuda::launch_grouped_matmul(type_of(x), x.data_ptr(), w.data_ptr(), ends.data_ptr<int32_t>(),
                              y.data_ptr(), shape, transposed, launch.stream());
  launch.check();
  return y;
}

void add_grouped_matmul_tn(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                           const at::Tensor& ends) {
  const Launch launch(g);
  cuda::launch_grouped_matmul_tn(type_of(g), g.data_ptr(), x.data_ptr(), ends.data_ptr<int32_t>(),
                                 out.data_ptr<float>(),
                                 {g.size(0), g.size(1), x.size(1), out.size(0)}, launch.stream());
  launch.check();
}

namespace {

const int32_t* indices(const at::Tensor& x) {
  return x.const_data_ptr<int32_t>();
}

/// Null if undefined.
const float* floats(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

const void* memory(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
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
  TokenChoice choice;
  choice.chosen = at::empty({logits.size(0), top_k}, logits.options().dtype(at::kInt));
  choice.weights = at::empty({logits.size(0), top_k}, logits.options());
  choice.scaled = factors.defined() ? at::empty_like(choice.weights) : choice.weights;
  const Launch launch(logits);
  cuda::launch_route_tokens(router_choice(logits, choice, normalise), floats(logits),
                            floats(factors), launch.stream());
  launch.check();
  return choice;
}

at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale) {
  at::Tensor d_logits = at::empty_like(logits);
  const Launch launch(logits);
  cuda::launch_route_tokens_backward(router_choice(logits, choice, normalise),
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
  Routes routes;
  routes.slots = at::empty({chosen.numel()}, chosen.options());
  routes.experts = at::empty({chosen.numel()}, chosen.options());
  routes.ends = at::empty({num_experts}, chosen.options());
  routes.rows = at::empty_like(chosen);
  const Launch launch(chosen);
  cuda::launch_sort_routes({.routes = chosen.numel(),
                            .num_experts = num_experts,
                            .ends = routes.ends.data_ptr<int32_t>(),
                            .slots = routes.slots.data_ptr<int32_t>(),
                            .experts = routes.experts.data_ptr<int32_t>(),
                            .rows = routes.rows.data_ptr<int32_t>()},
                           indices(chosen), launch.stream());
  launch.check();
  return routes;
}

namespace {

cuda::TokenRows token_rows(const at::Tensor& rows, int64_t columns) {
  return {indices(rows), rows.size(0), rows.size(1), columns};
}

}  // namespace

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& rows) {
  at::Tensor y = at::empty({rows.numel(), x.size(1)}, x.options());
  const Launch launch(x);
  cuda::launch_spread_rows(type_of(x), memory(x), y.data_ptr(), token_rows(rows, x.size(1)),
                           launch.stream());
  launch.check();
  return y;
}

at::Tensor sum_rows(const RowSum& sum) {
  at::Tensor y = at::empty({sum.rows.size(0), sum.x.size(1)}, sum.x.options());
  const Launch launch(sum.x);
  cuda::launch_sum_rows(type_of(sum.x),
                        {.x = memory(sum.x),
                         .weights = floats(sum.weights),
                         .residual = memory(sum.residual),
                         .beside = memory(sum.beside),
                         .logits = memory(sum.logits),
                         .y = y.data_ptr()},
                        token_rows(sum.rows, sum.x.size(1)), launch.stream());
  launch.check();
  return y;
}

void add_expert_bias(at::Tensor& y, const at::Tensor& bias, const at::Tensor& experts) {
  const Launch launch(y);
  cuda::launch_add_expert_bias(type_of(y), y.data_ptr(), memory(bias), indices(experts), y.size(0),
                               y.size(1), launch.stream());
  launch.check();
}

void add_expert_sums(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                     const Routes& routes) {
  const Launch launch(x);
  cuda::launch_add_expert_sums(type_of(x),
                               {.x = memory(x),
                                .ends = indices(routes.ends),
                                .weights = floats(weights),
                                .slots = indices(routes.slots),
                                .out = out.data_ptr<float>(),
                                .experts = routes.num_experts(),
                                .columns = x.size(1)},
                               launch.stream());
  launch.check();
}

void add_expert_products(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends) {
  const Launch launch(out);
  cuda::launch_add_expert_products(type_of(products),
                                   {.products = memory(products),
                                    .row_stride = products.stride(1),
                                    .matrix_stride = products.stride(0),
                                    .ends = indices(ends),
                                    .out = out.data_ptr<float>(),
                                    .experts = out.size(0),
                                    .rows = out.size(1),
                                    .columns = out.size(2)},
                                   launch.stream());
  launch.check();
}

WeightedGatedGrads weighted_gated_backward(Gating gating, WeightedGated& gated,
                                           const Routes& routes, bool with_h) {
  WeightedGatedGrads grads;
  grads.d_weights = at::empty_like(gated.weights);
  if (with_h) grads.weighted_h = at::empty_like(gated.dh);
  const Launch launch(gated.dh);
  cuda::launch_weighted_gated_backward(
      type_of(gated.dh), gating,
      {.dh = memory(gated.dh),
       .gate_up = gated.gate_up.data_ptr(),
       .weights = floats(gated.weights),
       .slots = indices(routes.slots),
       .d_weights = grads.d_weights.data_ptr<float>(),
       .weighted_h = with_h ? grads.weighted_h.data_ptr() : nullptr,
       .bias = memory(gated.bias),
       .dy = memory(gated.dy),
       .experts = indices(routes.experts),
       .rows = gated.dh.size(0),
       .inner = gated.dh.size(1),
       .hidden = gated.bias.defined() ? gated.bias.size(1) : 0},
      launch.stream());
  launch.check();
  return grads;
}

GatedAnswerGrads gated_answer_backward(const at::Tensor& dy, const at::Tensor& answer,
                                       const at::Tensor& logits) {
  GatedAnswerGrads grads{at::empty_like(answer), at::empty_like(logits)};
  const Launch launch(dy);
  cuda::launch_gated_answer_backward(type_of(dy),
                                     {.dy = memory(dy),
                                      .answer = memory(answer),
                                      .logits = memory(logits),
                                      .d_answer = grads.d_answer.data_ptr(),
                                      .d_logits = grads.d_logits.data_ptr(),
                                      .tokens = dy.size(0),
                                      .columns = dy.size(1)},
                                     launch.stream());
  launch.check();
  return grads;
}

}  // namespace sftrun::kernels::plugin
