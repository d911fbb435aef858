#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Assignment of tokens to experts. A token's top_k choices are its slots (slot = token * top_k +
/// k). The slots sorted by expert, stably, are called rows.
namespace sftrun::kernels {

/// Indices are int64 on CPU and int32 on CUDA, where the host does not know their values.
struct Routes {
  at::Tensor slots;              ///< [T * top_k]: slot of each row
  at::Tensor experts;            ///< [T * top_k]: expert of each row
  at::Tensor ends;               ///< [experts] int32: end row of each expert
  at::Tensor tokens;             ///< CPU: [T * top_k], token of each row
  std::vector<int64_t> offsets;  ///< CPU: [experts + 1], 0 followed by the ends
  at::Tensor rows;               ///< CUDA: [T, top_k], row of each slot
  int64_t num_experts() const { return ends.numel(); }
};

/// A router's choice.
struct TokenChoice {
  at::Tensor chosen;   ///< [T, top_k] experts of each token, largest logit first
  at::Tensor weights;  ///< [T, top_k] fp32
  at::Tensor scaled;   ///< CUDA: weights times expert_scale of their experts; or `weights`
};

/// Operands of y = residual + sum over a token's rows of weight * x + sigmoid(logits) * beside:
/// [T, columns].
struct RowSum {
  at::Tensor x;         ///< [T * top_k, columns]
  at::Tensor rows;      ///< [T, top_k] int32
  at::Tensor weights;   ///< [T, top_k] fp32; undefined: 1
  at::Tensor residual;  ///< [T, columns] or undefined
  at::Tensor beside;    ///< [T, columns] or undefined
  at::Tensor logits;    ///< [T, 1], dtype of x; undefined: `beside` is added unscaled
};

/// Operands of the backward pass through a gated activation whose expert outputs are weighted.
struct WeightedGated {
  at::Tensor dh;       ///< [rows, inner]: gradient of h without the weights
  at::Tensor gate_up;  ///< [rows, 2 * inner]; overwritten with its gradient, weights included
  at::Tensor weights;  ///< [T, top_k] fp32
  at::Tensor bias;     ///< [experts, hidden] of down_proj; undefined: none
  at::Tensor dy;       ///< [rows, hidden]: gradient of down_proj's output; read if there is a bias
};
struct WeightedGatedGrads {
  at::Tensor d_weights;   ///< [T, top_k] fp32
  at::Tensor weighted_h;  ///< [rows, inner]: weight * h; undefined if not requested
};

/// Gradients of sigmoid(logits) * output.
struct GatedOutputGrads {
  at::Tensor d_output;  ///< [T, columns]
  at::Tensor d_logits;  ///< [T, 1]
};

}  // namespace sftrun::kernels
