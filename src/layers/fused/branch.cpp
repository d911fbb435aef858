#include "fused/branch.h"

#include <ATen/ATen.h>

#include <utility>

#include "linear/fused_linears.h"

namespace sftrun::layers {

at::Tensor BranchBlock::forward(at::Tensor y, BranchRun* keep) {
  if (l_.per_layer.defined()) y = add_channels(y, keep);
  return l_.scalar.defined() ? y * l_.scalar.weight : y;
}

at::Tensor BranchBlock::backward(BranchRun run, const at::Tensor& grad) {
  const at::Tensor scaled = l_.scalar.defined() ? grad * l_.scalar.weight : grad;
  return l_.per_layer.defined() ? backward_of_channels(std::move(run), scaled) : scaled;
}

at::Tensor BranchBlock::add_channels(const at::Tensor& x, BranchRun* keep) {
  const PerLayerBranch& branch = l_.per_layer;
  const at::Tensor gate =
      linears_forward(x, {&branch.gate}, batch_, keep ? &keep->gate_low : nullptr)[0];
  if (keep) keep->x = x, keep->gate = gate;
  return join(x, kernels::gated_forward(l_.gating, gate, channels()), branch.projection, {},
              branch.out, keep ? &keep->joined : nullptr);
}

at::Tensor BranchBlock::backward_of_channels(BranchRun run, const at::Tensor& grad) {
  const PerLayerBranch& branch = l_.per_layer;
  at::Tensor up = channels();
  const at::Tensor h =
      branch.projection.trains() ? kernels::gated_forward(l_.gating, run.gate, up) : at::Tensor();
  const at::Tensor dh =
      join_backward(grad, h, branch.projection, {}, branch.out, run.joined, /*needs_dh=*/true);
  kernels::gated_backward_(l_.gating, dh, run.gate, up);
  if (at::Tensor& all = batch_.shared_state->d_per_layer; all.defined())
    all.select(1, l_.index).copy_(up);
  return grad + linears_backward({run.gate}, run.x, run.gate_low, {&branch.gate}, batch_, true);
}

at::Tensor BranchBlock::channels() const {
  return batch_.shared_state->per_layer.select(1, l_.index).clone(at::MemoryFormat::Contiguous);
}

}  // namespace sftrun::layers
