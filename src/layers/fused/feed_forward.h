#pragma once

#include "fused_block.h"

namespace sftrun::layers {

/// State of the forward pass.
struct FeedForwardRun {
  at::Tensor x, rstd, gate, up;
  LowRank gate_up_low;
  at::Tensor joint_low, joint_gate_up;  ///< of joint linears; holds gate and up
  Joined joined;
  MixtureRun mixture;  ///< replaces gate, up and what follows
  /// Where experts run in parallel to the dense MLP: outputs of both before their norms.
  at::Tensor dense, dense_rstd, experts, experts_rstd, experts_in_rstd;
};

/// The second block of a layer: an MLP, a mixture of experts, or both.
class FeedForwardBlock : public FusedBlock {
 public:
  FeedForwardBlock(const Layer& layer, const BatchContext& batch)
      : FusedBlock(layer, batch), f_(layer.feed_forward) {}
  /// @param x [T, hidden]   @return [T, hidden]
  at::Tensor forward(const at::Tensor& x, FeedForwardRun* keep);
  /// @param grad gradient of the output   @return gradient of the input; undefined when !needs_dx
  at::Tensor backward(FeedForwardRun run, const at::Tensor& grad, bool needs_dx);

 private:
  at::Tensor forward_of_mixture(const at::Tensor& x, FeedForwardRun* keep);
  at::Tensor backward_of_mixture(FeedForwardRun run, const at::Tensor& grad, bool needs_dx);
  /// x + norm(norm(dense(norm(x))) + norm(experts(norm(x), routed by x))), each norm with own
  /// weights.
  at::Tensor forward_of_both(const at::Tensor& x, FeedForwardRun* keep);
  at::Tensor backward_of_both(FeedForwardRun run, const at::Tensor& grad, bool needs_dx);
  /// Gradient of the layer's output -> gradients of gate and up, which overwrite them.
  void through_gated_backward(FeedForwardRun& run, const at::Tensor& grad, bool needs_gates);
  LinearGroup gate_up_group() const;

  const FeedForward& f_;
};

}  // namespace sftrun::layers
