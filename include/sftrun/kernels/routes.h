#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Which tokens go to which experts. A token's choices are its slots, token * top_k + place among
/// them; sorted by expert, those of one expert in their order, they are rows.
namespace sftrun::kernels {

/// Indices are int64 on a CPU, int32 on CUDA, where nothing of them is known to the host.
struct Routes {
  at::Tensor slots;              ///< [T * top_k]: of each row
  at::Tensor experts;            ///< [T * top_k]: of each row
  at::Tensor ends;               ///< [experts] int32: where each expert's rows end
  at::Tensor tokens;             ///< CPU: [T * top_k], of each row
  std::vector<int64_t> offsets;  ///< CPU: [experts + 1], 0 and the ends
  at::Tensor rows;               ///< CUDA: [T, top_k], of each slot
  int64_t num_experts() const { return ends.numel(); }
};

/// What a router chose.
struct TokenChoice {
  at::Tensor chosen;   ///< [T, top_k] experts of each token, those of the largest logits first
  at::Tensor weights;  ///< [T, top_k] fp32
  at::Tensor scaled;   ///< CUDA: the weights times their experts' factors; `weights` without any
};

/// For each token the sum over its rows of weight * x, plus what is beside: [T, columns].
struct RowSum {
  at::Tensor x;         ///< [T * top_k, columns]
  at::Tensor rows;      ///< [T, top_k] int32
  at::Tensor weights;   ///< [T, top_k] fp32; undefined: 1
  at::Tensor residual;  ///< [T, columns] or undefined
  at::Tensor beside;    ///< [T, columns], times the sigmoid of `logits`, if defined
  at::Tensor logits;    ///< [T, 1], of x's dtype; undefined: `beside` as it is
};

/// Rows of a gated activation whose answers have weights, in the backward pass.
struct WeightedGated {
  at::Tensor dh;       ///< [rows, inner]: of the activation, without the weights
  at::Tensor gate_up;  ///< [rows, 2 * inner]; becomes its own gradient, with the weights
  at::Tensor weights;  ///< [T, top_k] fp32
  at::Tensor bias;     ///< [experts, hidden] of the matrix that follows; undefined: none
  at::Tensor dy;       ///< [rows, hidden]: of that matrix' results; read with a bias
};
struct WeightedGatedGrads {
  at::Tensor d_weights;   ///< [T, top_k] fp32
  at::Tensor weighted_h;  ///< [rows, inner]: weight * h; undefined where it was not asked for
};

/// Of answers that are multiplied by the sigmoid of a logit.
struct GatedAnswerGrads {
  at::Tensor d_answer;  ///< [T, columns]
  at::Tensor d_logits;  ///< [T, 1]
};

}  // namespace sftrun::kernels
