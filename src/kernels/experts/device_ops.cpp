#include "sftrun/kernels/expert_ops.h"

#include <c10/util/Exception.h>

#include <limits>

#include "../operands.h"
#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {
namespace {

/// Route indices are int32.
void require_routes(const at::Tensor& indices, const at::Tensor& like, int64_t routes) {
  require_operand(indices, like, at::kInt);
  require_numel(indices, routes);
}

void require_shape(const at::Tensor& x, at::IntArrayRef sizes) {
  TORCH_CHECK(x.sizes() == sizes, "an operand of shape ", x.sizes(), " in place of ", sizes);
}

void require_router(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k) {
  require_rows(logits);
  require_operand(logits, logits, at::kFloat);
  TORCH_CHECK(0 < top_k && top_k <= logits.size(1), top_k, " of ", logits.size(1), " experts");
  if (!factors.defined()) return;
  require_operand(factors, logits, at::kFloat);
  require_numel(factors, logits.size(1));
}

void require_weights(const at::Tensor& weights, const at::Tensor& like, at::IntArrayRef sizes) {
  require_operand(weights, like, at::kFloat);
  require_shape(weights, sizes);
}

void require_token_rows(const at::Tensor& rows, const at::Tensor& x) {
  TORCH_CHECK(rows.dim() == 2, "rows of shape ", rows.sizes(), " in place of [tokens, top_k]");
  require_operand(rows, x, at::kInt);
}

}  // namespace

TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise) {
  require_router(logits, factors, top_k);
  return cuda_kernels().route_tokens(logits, factors, top_k, normalise);
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
  return cuda_kernels().route_tokens_backward(logits, choice, factors, normalise, d_scaled,
                                              d_probability, scale);
}

Routes sort_routes(const at::Tensor& chosen, int64_t num_experts) {
  require_token_rows(chosen, chosen);
  TORCH_CHECK(num_experts > 0 && chosen.numel() <= std::numeric_limits<int32_t>::max(),
              chosen.numel(), " routes to ", num_experts, " experts");
  return cuda_kernels().sort_routes(chosen, num_experts);
}

at::Tensor spread_rows(const at::Tensor& x, const Routes& routes) {
  require_rows(x);
  require_token_rows(routes.rows, x);
  require_shape(routes.rows, {x.size(0), routes.rows.size(1)});
  return cuda_kernels().spread_rows(x, routes.rows);
}

at::Tensor sum_rows(const RowSum& sum) {
  require_rows(sum.x);
  require_token_rows(sum.rows, sum.x);
  require_shape(sum.x, {sum.rows.numel(), sum.x.size(1)});
  if (sum.weights.defined()) require_weights(sum.weights, sum.x, sum.rows.sizes());
  for (const at::Tensor* beside : {&sum.residual, &sum.beside}) {
    if (!beside->defined()) continue;
    require_operand(*beside, sum.x, sum.x.scalar_type());
    require_shape(*beside, {sum.rows.size(0), sum.x.size(1)});
  }
  if (sum.logits.defined()) {
    require_operand(sum.logits, sum.x, sum.x.scalar_type());
    require_numel(sum.logits, sum.rows.size(0));
  }
  return cuda_kernels().sum_rows(sum);
}

void add_expert_bias_(at::Tensor& y, const at::Tensor& bias, const Routes& routes) {
  require_rows(y);
  require_operand(bias, y, y.scalar_type());
  require_shape(bias, {routes.num_experts(), y.size(1)});
  require_routes(routes.experts, y, y.size(0));
  cuda_kernels().add_expert_bias(y, bias, routes.experts);
}

void add_expert_sums_(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                      const Routes& routes) {
  require_rows(x);
  require_operand(out, x, at::kFloat);
  require_numel(out, routes.num_experts() * x.size(1));
  require_routes(routes.slots, x, x.size(0));
  require_routes(routes.ends, x, routes.num_experts());
  if (weights.defined()) {
    require_operand(weights, x, at::kFloat);
    require_numel(weights, x.size(0));
  }
  cuda_kernels().add_expert_sums(out, x, weights, routes);
}

void add_expert_products_(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends) {
  require_operand(out, products, at::kFloat);
  TORCH_CHECK(out.dim() == 3 && products.sizes() == out.sizes() && products.stride(2) == 1,
              "products of sizes ", products.sizes(), ", strides ", products.strides(), " into ",
              out.sizes());
  TORCH_CHECK(out.size(1) * out.size(2) <= std::numeric_limits<int32_t>::max(), "matrices of ",
              out.sizes());
  require_routes(ends, out, out.size(0));
  cuda_kernels().add_expert_products(out, products, ends);
}

WeightedGatedGrads weighted_gated_backward_(Gating gating, WeightedGated& gated,
                                            const Routes& routes, bool with_h) {
  const at::Tensor& dh = gated.dh;
  require_rows(dh);
  require_operand(gated.gate_up, dh, dh.scalar_type());
  require_shape(gated.gate_up, {dh.size(0), 2 * dh.size(1)});
  require_weights(gated.weights, dh, routes.rows.sizes());
  require_routes(routes.slots, dh, dh.size(0));
  require_routes(routes.experts, dh, dh.size(0));
  require_numel(gated.weights, dh.size(0));
  if (gated.bias.defined()) {
    require_rows(gated.bias);
    require_operand(gated.bias, dh, dh.scalar_type());
    require_operand(gated.dy, dh, dh.scalar_type());
    require_shape(gated.dy, {dh.size(0), gated.bias.size(1)});
  }
  return cuda_kernels().weighted_gated_backward(gating, gated, routes, with_h);
}

GatedAnswerGrads gated_answer_backward(const at::Tensor& dy, const at::Tensor& answer,
                                       const at::Tensor& logits) {
  require_rows(dy);
  require_same(answer, dy);
  require_operand(logits, dy, dy.scalar_type());
  require_numel(logits, dy.size(0));
  return cuda_kernels().gated_answer_backward(dy, answer, logits);
}

}  // namespace sftrun::kernels
