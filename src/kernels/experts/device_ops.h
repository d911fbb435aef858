#pragma once

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/routes.h"

/// What mixtures of experts do on CUDA beside their products, each in one launch that the host does
/// not wait for and whose sums have one order. Operands are contiguous.
namespace sftrun::kernels {

/// The top_k largest of each token's softmax over all experts, of equal ones the lower expert, NaN
/// first; their weights add up to 1 with `normalise`.
/// @param logits [T, experts] fp32   @param factors [experts] fp32 or undefined
TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise);
/// `scale` times the gradient of the logits, [T, experts].
/// @param d_scaled [T, top_k] fp32, of `TokenChoice::scaled`
/// @param d_probability [experts] fp32, of every token's probabilities; undefined: none
at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale);
/// @param chosen [T, top_k] int32, each in [0, num_experts)
Routes sort_routes(const at::Tensor& chosen, int64_t num_experts);

/// Each token's row of x [T, columns] in each of its rows: [T * top_k, columns].
at::Tensor spread_rows(const at::Tensor& x, const Routes& routes);
/// Summed in fp32 in the order of a token's slots and rounded once.
at::Tensor sum_rows(const RowSum& sum);
/// y [T * top_k, columns] += bias [experts, columns] of each row's expert.
void add_expert_bias_(at::Tensor& y, const at::Tensor& bias, const Routes& routes);
/// out [experts, columns] fp32 += sum over each expert's rows of weight * x.
/// @param weights [T, top_k] fp32; undefined: 1
void add_expert_sums_(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                      const Routes& routes);
/// out [experts, N, K] fp32 += products, where an expert has rows.
/// @param products may have rows that lie further apart than they are long
void add_expert_products_(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends);

/// Backward through h = activation(gate) * up of rows whose answers are multiplied by weights: the
/// gradient of the weights, <h, dh> and <bias, dy>.
WeightedGatedGrads weighted_gated_backward_(Gating gating, WeightedGated& gated,
                                            const Routes& routes, bool with_h);
/// Backward of sigmoid(logits) * answer.   @param answer as dy   @param logits [T, 1], as dy
GatedAnswerGrads gated_answer_backward(const at::Tensor& dy, const at::Tensor& answer,
                                       const at::Tensor& logits);

}  // namespace sftrun::kernels
