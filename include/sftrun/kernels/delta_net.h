#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"

/// A gated delta net (arXiv:2412.06464), the linear attention of Qwen3-Next and Qwen3.5. Each value
/// head has a memory S [key_dim, value_dim] that starts at zero in every document and is corrected
/// by each of its tokens:
///     S *= exp(g);  S += k (beta (v - S^T k))^T;  o = S^T q
/// where q, k and v come from a causal convolution over tokens with SiLU, q and k have length 1 (q
/// then times key_dim^-0.5), beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias). Consecutive
/// value heads share a key head. What leaves is norm(o) * silu(z).
namespace sftrun::kernels {

struct DeltaNet {
  Linear in_qkv;      ///< [2 num_key_heads key_dim + num_value_heads value_dim, hidden]: q, k, v
  Linear in_z;        ///< [num_value_heads value_dim, hidden]
  Linear in_b, in_a;  ///< [num_value_heads, hidden]
  Weight conv;        ///< [channels of in_qkv, kernel], the last one for the token itself
  Weight a_log, dt_bias;  ///< [num_value_heads]
  Norm norm;              ///< [value_dim], of each head
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0;

  bool defined() const { return num_value_heads > 0; }
  bool trains() const {
    for (const Linear* linear : {&in_qkv, &in_z, &in_b, &in_a}) {
      if (linear->trains()) return true;
    }
    return conv.parameter || a_log.parameter || dt_bias.parameter || norm.parameter;
  }
};

/// What the next token of a document needs to know of those before it.
struct DeltaState {
  at::Tensor conv;    ///< [kernel - 1, channels]: the convolution's last inputs, zeros before them
  at::Tensor memory;  ///< [num_value_heads, key_dim, value_dim] fp32
};

/// What the forward pass keeps: the projections and what the rule answered. The backward pass
/// computes the rest again.
struct DeltaRun {
  at::Tensor qkv, z, b, a;  ///< [T, …]
  at::Tensor read;          ///< [T, num_value_heads * value_dim]: o, before its norm
  LowRank low;              ///< of the projections' adapters
};

/// @param x [T, hidden], normed
/// @param keep what backward needs; null: nothing
/// @param state filled with what follows the batch's one document; null: not wanted
/// @return [T, num_value_heads * value_dim], which the output projection reads
at::Tensor delta_net_forward(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                             DeltaRun* keep, DeltaState* state = nullptr);
/// Adds to the parameters' gradients.
/// @param x as forward had it   @return its gradient; undefined when !needs_dx
at::Tensor delta_net_backward(const DeltaNet& net, DeltaRun run, const at::Tensor& d_out,
                              const at::Tensor& x, const BatchContext& batch, bool needs_dx);
/// One more token of a document: x [1, hidden] -> [1, num_value_heads * value_dim].
at::Tensor delta_net_step(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                          DeltaState& state);

}  // namespace sftrun::kernels
