#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/joint_linears.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/members.h"
#include "sftrun/layers/mixer.h"
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

/// The second block of a layer: an MLP, a mixture of experts, or both with the same input.
struct FeedForward {
  Norm in, out;
  Norm dense_out, experts_in, experts_out;  ///< where experts run in parallel to the dense MLP
  Linear gate, up, gate_up, down;           ///< gate and up, or the fused gate_up
  /// CUDA: joint linears of gate and up, of down; undefined where not possible.
  JointLinears joint_gate_up, joint_down;
  Mixture mixture;  ///< replaces gate, up and down

  bool has_dense_half() const { return !down.name.empty(); }
  bool fuses_gate_up() const { return !gate_up.name.empty(); }
  BlockMembers mlp_members();
  BlockMembers experts_members();
};

/// The mixer, then the feed-forward block, each: x + residual_scale * norm_out(f(norm_in(x))).
struct Layer {
  Norm mixer_in, mixer_out;
  std::unique_ptr<Mixer> mixer;
  FeedForward feed_forward;
  PerLayerBranch per_layer;
  Weight scalar;  ///< [1], multiplies the layer's output
  kernels::Gating gating;
  double residual_scale = 1;
  Recomputed recomputed = Recomputed::kNothing;
  int64_t index = 0;  ///< index of the layer
  int64_t unit = 0;   ///< index of its unit (unit.h)
  /// Unused columns that the layer below needs after each row of its output gradient.
  int64_t spare_below = 0;

  /// @param block a name of spec/blocks.h   @pre the layer has it
  BlockMembers members(std::string_view block);
  /// Linear layers that are present, in the order in which they compute.
  std::vector<Linear*> linears();
  std::vector<ExpertMatrix*> experts();
  std::vector<Joinable> joints();
};

/// Final norm and language-model head: logits = logit_scale * W norm(x), then the soft cap. Or a head of scores: `linear` is
/// [labels, hidden] in fp32 on every rank, and nothing follows it.
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
