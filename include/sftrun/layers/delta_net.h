#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/mixer.h"

/// Gated delta net (arXiv:2412.06464), the linear attention of Qwen3-Next and Qwen3.5. Each value
/// head has a state S [key_dim, value_dim], zero at the start of each document; each token updates
/// it:
///     S *= exp(g);  S += k (beta (v - S^T k))^T;  o = S^T q
/// q, k and v are the outputs of a causal convolution over tokens with SiLU; q and k are
/// L2-normalised, then q is multiplied by key_dim^-0.5. beta = sigmoid(b),
/// g = -exp(a_log) softplus(a + dt_bias). Consecutive value heads share a key head.
/// The output is norm(o) * silu(z).
namespace sftrun::layers {

class DeltaNet final : public Mixer {
 public:
  Linear in_qkv;      ///< [2 num_key_heads key_dim + num_value_heads value_dim, hidden]: q, k, v
  Linear in_z;        ///< [num_value_heads value_dim, hidden]
  Linear in_b, in_a;  ///< [num_value_heads, hidden]
  Weight conv;        ///< [channels of in_qkv, kernel]; the last tap is the current token's
  Weight a_log, dt_bias;  ///< [num_value_heads]
  Norm norm;              ///< [value_dim], applied to each head
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0;

  BlockMembers members() override;
  std::unique_ptr<MixerPass> pass(const Layer& layer, const BatchContext& batch) const override;
  at::Tensor plain(const at::Tensor& x, const BatchContext& batch,
                   SharedKeys& shared) const override;
  std::unique_ptr<LayerCache> make_cache(const at::TensorOptions& options) const override;
  at::Tensor generate(const Layer& layer, const at::Tensor& x,
                      const GenerationPass& pass) const override;
  bool is_static(at::ScalarType /*dtype*/) const override { return false; }  // documents are cut

  /// Whether anything before the output projection trains.
  bool trains() const {
    for (const Linear* linear : {&in_qkv, &in_z, &in_b, &in_a}) {
      if (linear->trains()) return true;
    }
    return conv.parameter || a_log.parameter || dt_bias.parameter || norm.parameter;
  }
};

/// State after a document's tokens so far, from which the next token continues.
struct DeltaState {
  at::Tensor conv;    ///< [kernel - 1, channels]: the last inputs of the convolution, zero-padded
  at::Tensor memory;  ///< [num_value_heads, key_dim, value_dim] fp32
};

/// What the forward pass saves: the projections and the recurrence's output. The backward pass
/// recomputes the rest.
struct DeltaRun {
  at::Tensor qkv, z, b, a;  ///< [T, …]
  at::Tensor read;          ///< [T, num_value_heads * value_dim]: o before its norm
  LowRank low;              ///< of the adapters of the projections
};

/// @param x [T, hidden], after the input norm
/// @param keep receives what backward needs; null: nothing is saved
/// @param state receives the state after the batch's only document; null: not computed
/// @return [T, num_value_heads * value_dim], the input of the output projection
at::Tensor delta_net_forward(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                             DeltaRun* keep, DeltaState* state = nullptr);
/// Adds to the parameters' gradients.
/// @param x the input of the forward pass   @return its gradient; undefined when !needs_dx
at::Tensor delta_net_backward(const DeltaNet& net, DeltaRun run, const at::Tensor& d_out,
                              const at::Tensor& x, const BatchContext& batch, bool needs_dx);
/// Decodes one more token: x [1, hidden] -> [1, num_value_heads * value_dim]; updates `state`.
at::Tensor delta_net_step(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                          DeltaState& state);
/// transformers' Qwen3_5GatedDeltaNet up to its out_proj, document by document and token by token
/// (modeling_qwen3_5.py, torch_recurrent_gated_delta_rule), under autograd.
/// @param x [T, hidden], after the input norm   @return [T, num_value_heads * value_dim]
at::Tensor plain_delta_net(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch);

}  // namespace sftrun::layers
