#pragma once

#include "fused_block.h"

namespace sftrun::layers {

/// State of the forward pass.
struct BranchRun {
  at::Tensor x, gate;
  LowRank gate_low;
  Joined joined;
};

/// What follows the two blocks: per-layer inputs and the layer's scalar.
class BranchBlock : public FusedBlock {
 public:
  BranchBlock(const Layer& layer, const BatchContext& batch) : FusedBlock(layer, batch) {}
  /// @param y [T, hidden]   @return [T, hidden]
  at::Tensor forward(at::Tensor y, BranchRun* keep);
  /// @param grad gradient of the output   @return gradient of y
  at::Tensor backward(BranchRun run, const at::Tensor& grad);

 private:
  /// Adds the per-layer inputs (`PerLayerBranch`).
  at::Tensor add_channels(const at::Tensor& x, BranchRun* keep);
  at::Tensor backward_of_channels(BranchRun run, const at::Tensor& grad);
  /// Per-layer inputs of this layer: [T, size].
  at::Tensor channels() const;
};

}  // namespace sftrun::layers
