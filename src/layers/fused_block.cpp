#include "fused_block.h"

#include <ATen/ATen.h>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"
#include "sftrun/kernels/thin_tokens.h"

namespace sftrun::layers {

bool FusedBlock::joins(const JointLinears& joint, const at::Tensor& x) {
  return joint.defined() && (!joint.is_quantized() || x.size(0) > kernels::kMaxThinTokens);
}

int64_t FusedBlock::spare_of_input(const JointLinears& joint, const at::Tensor& x) const {
  return joins(joint, x) && adapters() ? joint.spare() : 0;
}

at::Tensor FusedBlock::joint_backward(const at::Tensor& dy, const at::Tensor& x,
                                      const kernels::NormFactors& norm, const at::Tensor& low,
                                      const JointLinears& joint, bool needs_dx) {
  const auto [dx, d_low] = joint_input_grad(dy, joint, needs_dx);
  const Linear& first = *joint.members.front();
  if (needs_dx && first.sums_input_gradient()) first.ranks->sum(dx);
  if (joint.has_adapters()) add_joint_adapter_grads(dy, x, norm, low, d_low, joint);
  return dx;
}

at::Tensor FusedBlock::copy_for_sum(const at::Tensor& x, const Norm& in, const JointLinears& joint,
                                    const Norm& out) const {
  const bool adds = joins(joint, x) && in.defined() && !out.defined() && l_.residual_scale == 1 &&
                    !joint.members.front()->sums_outputs();
  return adds ? at::empty_like(x) : at::Tensor();
}

std::vector<at::Tensor> FusedBlock::parts_of_joint(const at::Tensor& all,
                                                   const JointLinears& joint) {
  std::vector<at::Tensor> result;
  int64_t first = 0;
  for (const Linear* linear : joint.members) {
    result.push_back(all.narrow(1, first, linear->matrix().size(0)));
    first += linear->matrix().size(0);
  }
  return result;
}

std::vector<at::Tensor> FusedBlock::parts(const at::Tensor& x, const std::vector<int64_t>& sizes) {
  std::vector<at::Tensor> result;
  int64_t first = 0;
  for (const int64_t size : sizes) {
    result.push_back(x.narrow(1, first, size).contiguous());
    first += size;
  }
  return result;
}

at::Tensor FusedBlock::join(const at::Tensor& x, const at::Tensor& h, const Linear& linear,
                            const JointLinears& joint, const Norm& norm, Joined* keep,
                            const at::Tensor& copy) {
  if (!joins(joint, x)) {
    LowRank* low = keep ? &keep->low : nullptr;
    if (!norm.defined() && l_.residual_scale == 1)
      return linears_forward(h, {&linear}, batch_, low, x)[0];
    return normed_sum(x, linears_forward(h, {&linear}, batch_, low)[0], norm, keep);
  }
  at::Tensor* low = keep ? &keep->joint_low : nullptr;
  if (!copy.defined()) {
    const at::Tensor y = joint_forward(h, joint, /*spare=*/0, low, adapters());
    if (linear.sums_outputs()) linear.ranks->sum(y);
    return normed_sum(x, y, norm, keep);
  }
  add_joint_forward(h, joint, low, copy, adapters());
  return copy;
}

at::Tensor FusedBlock::normed_sum(const at::Tensor& x, const at::Tensor& y, const Norm& norm,
                                  Joined* keep) {
  if (!norm.defined() && l_.residual_scale == 1) return y.add_(x);  // nothing else reads y
  const Normed out = normed(y, norm);
  if (keep && norm.defined()) keep->y = y, keep->rstd = out.rstd;
  return at::add(x, out.y, l_.residual_scale);
}

at::Tensor FusedBlock::summand_grad(const at::Tensor& grad, const Norm& norm, Joined& kept,
                                    bool needs_dy, int64_t spare) {
  const at::Tensor scaled = l_.residual_scale == 1 ? grad : grad * l_.residual_scale;
  at::Tensor dy = norm_backward(scaled, kept.y, norm, kept.rstd, {}, needs_dy, spare);
  kept.y.reset();
  return dy;
}

at::Tensor FusedBlock::join_backward(const at::Tensor& grad, const at::Tensor& h,
                                     const Linear& linear, const JointLinears& joint,
                                     const Norm& norm, Joined& kept, bool needs_dh) {
  if (joins(joint, grad)) {
    const at::Tensor dy = summand_grad(grad, norm, kept, /*needs_dy=*/true, joint.spare());
    return joint_backward(dy, h, {}, kept.joint_low, joint, needs_dh);
  }
  const at::Tensor dy = summand_grad(grad, norm, kept, needs_dh || linear.trains());
  if (!dy.defined()) return {};
  return linears_backward({dy}, h, kept.low, {&linear}, batch_, needs_dh);
}

}  // namespace sftrun::layers
