#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

/// A token's choices are its slots (token * top_k + k); slots sorted by expert are rows.
namespace sftrun::kernels::cuda {

/// Rows of each token: rows[token * top_k + k].
struct TokenRows {
  const int32_t* rows;
  int64_t tokens, top_k, columns;
};
/// y [tokens * top_k, columns]: copies each token's row of x [tokens, columns] to its top_k rows.
void launch_spread_rows(Type type, const void* x, void* y, const TokenRows& token_rows,
                        Stream stream);
/// y [tokens, columns] = sum over a token's rows of weight * x, plus `beside` and `residual`;
/// summed in fp32 in slot order, rounded once.
struct RowSums {
  const void* x;         ///< [tokens * top_k, columns]
  const float* weights;  ///< [tokens, top_k]; null: 1
  const void* residual;  ///< [tokens, columns] or null
  const void* beside;    ///< [tokens, columns] or null
  const void* logits;    ///< [tokens]: `beside` is multiplied by their sigmoid; null: by 1
  void* y;
};
void launch_sum_rows(Type type, const RowSums& sums, const TokenRows& token_rows, Stream stream);
/// y [rows, columns] += bias[expert of the row]; bias [experts, columns].
void launch_add_expert_bias(Type type, void* y, const void* bias, const int32_t* experts,
                            int64_t rows, int64_t columns, Stream stream);
/// out [experts, columns] fp32 += sum over an expert's rows of weight * x, in an order that depends
/// only on the number of rows.
struct ExpertSums {
  const void* x;         ///< [rows, columns]
  const int32_t* ends;   ///< [experts]
  const float* weights;  ///< [rows], indexed by slot; null: 1
  const int32_t* slots;  ///< [rows]
  float* out;
  int64_t experts, columns;
};
void launch_add_expert_sums(Type type, const ExpertSums& sums, Stream stream);
/// out [experts, rows, columns] fp32 += products, for experts that have tokens; for the others
/// `products` is undefined.   @pre rows * columns < 2^31
struct ExpertProducts {
  const void* products;               ///< [experts, rows, columns]
  int64_t row_stride, matrix_stride;  ///< of products, in elements
  const int32_t* ends;                ///< [experts]
  float* out;
  int64_t experts, rows, columns;
};
void launch_add_expert_products(Type type, const ExpertProducts& products, Stream stream);
/// Backward pass of a gated activation whose expert outputs are weighted:
///   d_weights[slot] = <h, dh> + <bias[expert], dy>
///   gate and up are overwritten with their gradients for weight * dh
struct WeightedGated {
  const void* dh;          ///< [rows, inner], without the weight
  void* gate_up;           ///< [rows, 2 * inner]: columns of gate, then of up
  const float* weights;    ///< indexed by slot
  const int32_t* slots;    ///< [rows]
  float* d_weights;        ///< indexed by slot
  void* weighted_h;        ///< [rows, inner]: weight * h; null: not wanted
  const void* bias;        ///< [experts, hidden] of down_proj; null: none
  const void* dy;          ///< [rows, hidden]; read with a bias
  const int32_t* experts;  ///< [rows]; read with a bias
  int64_t rows, inner, hidden;
};
void launch_weighted_gated_backward(Type type, Gating gating, const WeightedGated& gated,
                                    Stream stream);
/// Backward pass of y = sigmoid(logit) * output: gradients of output and logit.
struct GatedOutput {
  const void* dy;      ///< [tokens, columns]
  const void* output;  ///< [tokens, columns]
  const void* logits;  ///< [tokens]
  void* d_output;      ///< [tokens, columns]
  void* d_logits;      ///< [tokens]
  int64_t tokens, columns;
};
void launch_gated_output_backward(Type type, const GatedOutput& gated, Stream stream);

}  // namespace sftrun::kernels::cuda
