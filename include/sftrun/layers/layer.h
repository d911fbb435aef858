#pragma once

#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/delta_net.h"
#include "sftrun/layers/joint_linears.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/mixture.h"

/// The weights of one decoder layer and the options of its computation.
namespace sftrun::layers {

/// Per-layer inputs of Gemma 3n and 4:
///     x + norm(projection(activation(gate(x)) * input)),  `input` from per_layer_inputs.h
struct PerLayerBranch {
  Linear gate, projection;
  Norm out;
  bool defined() const { return !gate.name.empty(); }
};

/// The block of a layer that runs again in the backward pass instead of keeping its state.
enum class Recomputed { kNothing, kMixer, kFeedForward };

/// Attention block, then MLP block, each: x + residual_scale * norm_out(f(norm_in(x))).
struct Layer {
  Norm attention_in, attention_out, feed_forward_in, feed_forward_out;
  Norm q_norm, k_norm;                      ///< before RoPE: per head, or over all heads together
  Norm v_norm;                              ///< per head
  Norm dense_out, experts_in, experts_out;  ///< where experts run in parallel to the dense MLP
  /// q, k and v, or the fused qkv; likewise gate and up, or gate_up.
  Linear q, k, v, qkv, o, gate, up, gate_up, down;
  /// CUDA: joint linears of q, k and v, of o, of gate and up, of down; undefined where not
  /// possible.
  JointLinears joint_qkv, joint_o, joint_gate_up, joint_down;
  /// Unused columns that the layer below needs after each row of its output gradient.
  int64_t spare_below = 0;
  Mixture mixture;     ///< replaces gate, up and down
  DeltaNet delta_net;  ///< replaces q, k, v and attention
  kernels::AttentionShape attention;
  /// q_proj yields a query and a gate for each head: out * sigmoid(gate).
  bool gates_attention = false;
  bool value_is_key = false;  ///< v is the output of k_proj, before its norm
  int64_t index = 0;          ///< index of the layer
  int64_t unit = 0;           ///< index of its unit (unit.h)
  int64_t keys_of = -1;       ///< layer whose keys and values are reused; -1: its own
  bool lends_keys = false;    ///< other layers reuse its keys and values
  PerLayerBranch per_layer;
  Weight scalar;  ///< [1], multiplies the layer's output
  Weight sinks;   ///< [heads]: attention sinks, one extra softmax score per head
  int rope = 0;   ///< index in `BatchContext::ropes`; -1: none
  kernels::Gating gating;
  double residual_scale = 1;
  Recomputed recomputed = Recomputed::kNothing;

  bool has_dense_half() const { return !down.name.empty(); }
  bool fuses_qkv() const { return !qkv.name.empty(); }
  bool fuses_gate_up() const { return !gate_up.name.empty(); }
  /// Linear layers that are present.
  std::vector<Linear*> linears() {
    std::vector<Linear*> present;
    SharedExpert& shared = mixture.shared;
    for (Linear* linear : {&q,
                           &k,
                           &v,
                           &qkv,
                           &delta_net.in_qkv,
                           &delta_net.in_z,
                           &delta_net.in_b,
                           &delta_net.in_a,
                           &o,
                           &gate,
                           &up,
                           &gate_up,
                           &down,
                           &mixture.router,
                           &shared.gate,
                           &shared.up,
                           &shared.down,
                           &shared.router,
                           &per_layer.gate,
                           &per_layer.projection}) {
      if (!linear->name.empty()) present.push_back(linear);
    }
    return present;
  }
  std::vector<ExpertMatrix*> experts() {
    if (!mixture.defined()) return {};
    return {&mixture.gate_up, &mixture.down};
  }
};

/// Final norm and language-model head: logits = logit_scale * W norm(x), then the soft cap.
struct Head {
  Norm norm;
  Linear linear;
  double logit_scale = 1;
  double softcap = 0;  ///< logits become cap * tanh(logit / cap); 0: off
  /// Tensor parallelism: `linear` has the rows of the tokens from `first_token`.
  int64_t first_token = 0;
  int64_t vocab_size = 0;  ///< tokens of all ranks
};

}  // namespace sftrun::layers
