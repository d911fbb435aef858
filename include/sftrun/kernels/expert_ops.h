#pragma once

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/routes.h"

/// CUDA operations of mixtures of experts except matrix products. Each is one launch without
/// synchronisation, with a fixed order of summation. Operands are contiguous.
namespace sftrun::kernels {

/// Chooses the top_k experts of each token by softmax over all experts; ties go to the lower expert
/// index, NaN sorts first. With `normalise` a token's weights sum to 1.
/// @param logits [T, experts] fp32   @param factors [experts] fp32 or undefined
TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise);
/// scale * gradient of the logits, [T, experts].
/// @param d_scaled [T, top_k] fp32, gradient of `TokenChoice::scaled`
/// @param d_probability [experts] fp32, gradient of every token's probabilities; undefined: none
at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale);
/// @param chosen [T, top_k] int32, each in [0, num_experts)
Routes sort_routes(const at::Tensor& chosen, int64_t num_experts);

/// Copies each token's row of x [T, columns] to the rows of its slots: [T * top_k, columns].
at::Tensor spread_rows(const at::Tensor& x, const Routes& routes);
/// See `RowSum`. Summed in fp32 in slot order, rounded once.
at::Tensor sum_rows(const RowSum& sum);
/// y [T * top_k, columns] += bias[expert of the row], bias [experts, columns].
void add_expert_bias_(at::Tensor& y, const at::Tensor& bias, const Routes& routes);
/// out [experts, columns] fp32 += sum over each expert's rows of weight * x.
/// @param weights [T, top_k] fp32; undefined: 1
void add_expert_sums_(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                      const Routes& routes);
/// out [experts, N, K] fp32 += products, for experts that have rows.
/// @param products the row stride may exceed the row length
void add_expert_products_(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends);

/// Backward pass of h = activation(gate) * up for rows whose expert outputs are weighted. The
/// gradient of a row's weight is <h, dh> + <bias, dy>.
WeightedGatedGrads weighted_gated_backward_(Gating gating, WeightedGated& gated,
                                            const Routes& routes, bool with_h);
/// Backward pass of sigmoid(logits) * output.   @param output as dy   @param logits [T, 1]
GatedOutputGrads gated_output_backward(const at::Tensor& dy, const at::Tensor& output,
                                       const at::Tensor& logits);

}  // namespace sftrun::kernels
