#pragma once

#include <vector>

#include "sftrun/kernels/delta_net.h"
#include "sftrun/kernels/experts.h"
#include "sftrun/kernels/joint_linears.h"
#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"

/// The weights of one decoder layer, and how it uses them.
namespace sftrun::kernels {

/// What layers have of one another beside their hidden states, in one batch.
struct LayerExchange {
  struct Keys {
    at::Tensor k, v;    ///< as attention reads them
    at::Tensor dk, dv;  ///< of the layers that borrow them; undefined: none so far
  };
  std::vector<Keys> keys;  ///< [layers], of those that lend theirs
  at::Tensor per_layer;    ///< [T, layers, size]
  at::Tensor d_per_layer;  ///< the same, fp32; undefined: not wanted
  RouterBalance balance;
};

/// Channels that a layer gets of each token: x + norm(projection(activation(gate(x)) * channels))
/// (Gemma 3n and 4).
struct PerLayerBranch {
  Linear gate, projection;
  Norm out;
  bool defined() const { return !gate.name.empty(); }
};

/// Attention, then feed-forward, each: x + residual_scale * norm_out(f(norm_in(x))).
struct Layer {
  Norm attention_in, attention_out, feed_forward_in, feed_forward_out;
  Norm q_norm, k_norm;  ///< before the rotation: of each head, or of all heads together
  Norm v_norm;          ///< of each head
  Norm dense_out, experts_in, experts_out;  ///< where experts work beside the dense half
  /// q, k and v, or all three in one; likewise gate and up.
  Linear q, k, v, qkv, o, gate, up, gate_up, down;
  /// CUDA: of q, k, v, of o alone, and so on, where they can be. What is undefined is not.
  JointLinears joint_qkv, joint_o, joint_gate_up, joint_down;
  /// Columns of room that the layer below wants behind the rows of its gradient.
  int64_t spare_below = 0;
  Mixture mixture;     ///< instead of gate, up and down
  DeltaNet delta_net;  ///< instead of q, k, v and attention
  AttentionShape attention;
  /// q gives of each head its query, then what the head's answer is gated by: out * sigmoid(gate).
  bool gates_attention = false;
  bool value_is_key = false;  ///< v is what k gives, before its norm
  int64_t index = 0;          ///< among the layers
  int64_t keys_of = -1;       ///< the layer whose keys and values it reads; -1: its own
  bool lends_keys = false;    ///< others read its own
  PerLayerBranch per_layer;
  Weight scalar;  ///< [1], of the layer's output
  Weight sinks;   ///< [heads]: beside each head's scores, of no key
  int rope = 0;   ///< index in `BatchContext::ropes`; -1: none
  Gating gating;
  double residual_scale = 1;

  bool has_dense_half() const { return !down.name.empty(); }
  bool fuses_qkv() const { return !qkv.name.empty(); }
  bool fuses_gate_up() const { return !gate_up.name.empty(); }
  /// Those that are there.
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

/// The final norm and the language-model head: logits = logit_scale * W norm(x), then capped.
struct Head {
  Norm norm;
  Linear linear;
  double logit_scale = 1;
  double softcap = 0;  ///< logits become cap * tanh(logit / cap); 0: no cap
};

/// Linears that share their input.
using LinearGroup = std::vector<const Linear*>;

inline bool trains(const LinearGroup& group) {
  for (const Linear* linear : group) {
    if (linear->trains()) return true;
  }
  return false;
}

}  // namespace sftrun::kernels
