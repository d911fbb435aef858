#include <ATen/ATen.h>

#include <limits>

#include "cuda/launch.h"
#include "experts/expert_operands.h"
#include "experts/expert_rows_launch.h"
#include "operands.h"
#include "sftrun/kernels/expert_ops.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_spread_rows)> launch_spread_rows("launch_spread_rows");
const CudaEntry<decltype(cuda::launch_sum_rows)> launch_sum_rows("launch_sum_rows");
const CudaEntry<decltype(cuda::launch_add_expert_bias)> launch_add_expert_bias(
    "launch_add_expert_bias");
const CudaEntry<decltype(cuda::launch_add_expert_sums)> launch_add_expert_sums(
    "launch_add_expert_sums");
const CudaEntry<decltype(cuda::launch_add_expert_products)> launch_add_expert_products(
    "launch_add_expert_products");
const CudaEntry<decltype(cuda::launch_weighted_gated_backward)> launch_weighted_gated_backward(
    "launch_weighted_gated_backward");
const CudaEntry<decltype(cuda::launch_gated_output_backward)> launch_gated_output_backward(
    "launch_gated_output_backward");

/// Route indices are int32.
void require_routes(const at::Tensor& indices, const at::Tensor& like, int64_t routes) {
  require_operand(indices, like, at::kInt);
  require_numel(indices, routes);
}

cuda::TokenRows token_rows(const at::Tensor& rows, int64_t columns) {
  return {indices(rows), rows.size(0), rows.size(1), columns};
}

}  // namespace

at::Tensor spread_rows(const at::Tensor& x, const Routes& routes) {
  require_rows(x);
  require_token_rows(routes.rows, x);
  require_shape(routes.rows, {x.size(0), routes.rows.size(1)});
  at::Tensor y = at::empty({routes.rows.numel(), x.size(1)}, x.options());
  const Launch launch(x);
  launch_spread_rows(cuda_type_of(x), memory(x), y.data_ptr(), token_rows(routes.rows, x.size(1)),
                     launch.stream());
  launch.check();
  return y;
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
  at::Tensor y = at::empty({sum.rows.size(0), sum.x.size(1)}, sum.x.options());
  const Launch launch(sum.x);
  launch_sum_rows(cuda_type_of(sum.x),
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

void add_expert_bias_(at::Tensor& y, const at::Tensor& bias, const Routes& routes) {
  require_rows(y);
  require_operand(bias, y, y.scalar_type());
  require_shape(bias, {routes.num_experts(), y.size(1)});
  require_routes(routes.experts, y, y.size(0));
  const Launch launch(y);
  launch_add_expert_bias(cuda_type_of(y), y.data_ptr(), memory(bias), indices(routes.experts),
                         y.size(0), y.size(1), launch.stream());
  launch.check();
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
  const Launch launch(x);
  launch_add_expert_sums(cuda_type_of(x),
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

void add_expert_products_(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends) {
  require_operand(out, products, at::kFloat);
  TORCH_CHECK(out.dim() == 3 && products.sizes() == out.sizes() && products.stride(2) == 1,
              "products of sizes ", products.sizes(), ", strides ", products.strides(), " into ",
              out.sizes());
  TORCH_CHECK(out.size(1) * out.size(2) <= std::numeric_limits<int32_t>::max(), "matrices of ",
              out.sizes());
  require_routes(ends, out, out.size(0));
  const Launch launch(out);
  launch_add_expert_products(cuda_type_of(products),
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
  WeightedGatedGrads grads;
  grads.d_weights = at::empty_like(gated.weights);
  if (with_h) grads.weighted_h = at::empty_like(gated.dh);
  const Launch launch(gated.dh);
  launch_weighted_gated_backward(cuda_type_of(gated.dh), gating,
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

GatedOutputGrads gated_output_backward(const at::Tensor& dy, const at::Tensor& output,
                                       const at::Tensor& logits) {
  require_rows(dy);
  require_same(output, dy);
  require_operand(logits, dy, dy.scalar_type());
  require_numel(logits, dy.size(0));
  GatedOutputGrads grads{at::empty_like(output), at::empty_like(logits)};
  const Launch launch(dy);
  launch_gated_output_backward(cuda_type_of(dy),
                               {.dy = memory(dy),
                                .output = memory(output),
                                .logits = memory(logits),
                                .d_output = grads.d_output.data_ptr(),
                                .d_logits = grads.d_logits.data_ptr(),
                                .tokens = dy.size(0),
                                .columns = dy.size(1)},
                               launch.stream());
  launch.check();
  return grads;
}

}  // namespace sftrun::kernels
