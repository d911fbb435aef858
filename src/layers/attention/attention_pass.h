#pragma once

#include <optional>
#include <vector>

#include "attention/heads_pass.h"
#include "attention/shared_attention.h"
#include "fused_block.h"
#include "sftrun/layers/attention.h"

namespace sftrun::layers {

struct AttentionInputs {
  at::Tensor q, k, v;  ///< [T, heads * head_dim], q and k after RoPE
  at::Tensor gate;     ///< [T, heads * head_dim], gate of the attention output; or undefined
};

/// Attention in a pass of the fused backend.
class AttentionPass final : public FusedBlock, public MixerPass {
 public:
  AttentionPass(const Layer& layer, const Attention& attention, const BatchContext& batch)
      : FusedBlock(layer, batch),
        a_(attention),
        heads_(attention, batch),
        shared_(attention, batch) {}
  at::Tensor forward(const at::Tensor& x, bool keeps) override;
  at::Tensor backward(const at::Tensor& grad, bool needs_dx) override;
  bool needs_gradient() const override;

  // Parts of `forward`, between which generation reads a cache.
  AttentionInputs project(const at::Tensor& x) { return project(x, nullptr, {}); }
  at::Tensor add_attended(const at::Tensor& x, const at::Tensor& attended) {
    return add_attended(x, attended, nullptr, {});
  }

 private:
  /// State of the forward pass.
  struct Run {
    at::Tensor x, rstd;
    at::Tensor gate;                    ///< of the attention output, before its sigmoid
    at::Tensor q, k, v;                 ///< as attention reads them, or before norms and RoPE
    at::Tensor q_rstd, k_rstd, v_rstd;  ///< if they have norms
    SharedAttention::Output attention;
    LowRank qkv_low;
    at::Tensor joint_low;  ///< of joint linears; replaces `qkv_low`
    Joined joined;
  };
  at::Tensor forward(const at::Tensor& x, Run* keep);
  at::Tensor backward(Run run, const at::Tensor& grad, bool needs_dx);
  /// @param copy receives x, if defined
  AttentionInputs project(const at::Tensor& x, Run* keep, const at::Tensor& copy);
  /// @param copy a copy of x, overwritten with the sum; or undefined
  at::Tensor add_attended(const at::Tensor& x, const at::Tensor& attended, Run* keep,
                          const at::Tensor& copy);
  LinearGroup qkv_group() const;
  /// Own or reused keys and values.
  SharedLayerState::Keys& shared_keys() const;
  /// With gradient checkpointing the layer runs again and stores the same values; dk and dv are
  /// kept.
  void lend(const at::Tensor& k, const at::Tensor& v) const;
  /// Writes the gradients of q, k and v to columns of the joint linear's output gradient.
  void joint_attention_backward(const Run& run, const at::Tensor& d_attended,
                                const std::vector<at::Tensor>& into) const;
  /// Gradients of q, k and v; only of q if keys and values are reused, whose gradients are added to
  /// the exchange.
  kernels::AttentionGrads through_attention_backward(const Run& run,
                                                     const at::Tensor& d_attended) const;

  const Attention& a_;
  const HeadsPass heads_;
  const SharedAttention shared_;
  std::optional<Run> run_;
};

/// attended * sigmoid(gate); `attended` itself where gate is undefined.
at::Tensor gated_attention(const at::Tensor& attended, const at::Tensor& gate);

}  // namespace sftrun::layers
