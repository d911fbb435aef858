#include "fused/feed_forward.h"

#include <ATen/ATen.h>

#include <utility>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"

namespace sftrun::layers {

at::Tensor FeedForwardBlock::forward(const at::Tensor& x, FeedForwardRun* keep) {
  if (f_.mixture.defined())
    return f_.has_dense_half() ? forward_of_both(x, keep) : forward_of_mixture(x, keep);
  const at::Tensor copy = copy_for_sum(x, f_.in, f_.joint_down, f_.out);
  Normed in = normed(x, f_.in, copy, spare_of_input(f_.joint_gate_up, x));
  std::vector<at::Tensor> gate_up;
  if (joins(f_.joint_gate_up, x)) {
    // Overwritten by their gradients in the backward pass, which needs the padding.
    const at::Tensor both =
        joint_forward(in.y, f_.joint_gate_up, keep ? f_.joint_gate_up.spare() : 0,
                      keep ? &keep->joint_low : nullptr, adapters());
    if (keep) keep->joint_gate_up = both;
    gate_up = parts_of_joint(both, f_.joint_gate_up);
  } else {
    gate_up = linears_forward(in.y, gate_up_group(), batch_, keep ? &keep->gate_up_low : nullptr);
  }
  in.y.reset();
  if (f_.fuses_gate_up()) {
    const int64_t inner = gate_up[0].size(1) / 2;
    gate_up = parts(gate_up[0], {inner, inner});
  }
  const at::Tensor h =
      kernels::gated_forward(l_.gating, gate_up[0], gate_up[1], spare_of_input(f_.joint_down, x));
  Joined* joined = keep ? &keep->joined : nullptr;
  at::Tensor y = join(x, h, f_.down, f_.joint_down, f_.out, joined, copy);
  if (keep) {
    keep->x = x, keep->rstd = in.rstd;
    keep->gate = std::move(gate_up[0]), keep->up = std::move(gate_up[1]);
  }
  return y;
}

at::Tensor FeedForwardBlock::backward(FeedForwardRun run, const at::Tensor& grad, bool needs_dx) {
  if (f_.mixture.defined()) {
    return f_.has_dense_half() ? backward_of_both(std::move(run), grad, needs_dx)
                               : backward_of_mixture(std::move(run), grad, needs_dx);
  }
  const Norm& norm = f_.in;
  const bool through_norm = needs_dx || norm.parameter != nullptr,
             through_down = through_norm || trains(gate_up_group());
  through_gated_backward(run, grad, through_down);
  if (!through_down) return {};
  at::Tensor d_normed;
  if (run.joint_gate_up.defined()) {
    run.gate.reset(), run.up.reset();
    d_normed = joint_backward(run.joint_gate_up, run.x, factors_of(norm, run.rstd), run.joint_low,
                              f_.joint_gate_up, through_norm);
    run.joint_gate_up.reset();
  } else {
    std::vector<at::Tensor> grads = {std::move(run.gate), std::move(run.up)};
    if (f_.fuses_gate_up()) grads = {at::cat(grads, 1)};
    d_normed = linears_backward(grads, normed_again(run.x, norm, gate_up_group()), run.gate_up_low,
                                gate_up_group(), batch_, through_norm);
  }
  if (!through_norm) return {};
  return norm_backward(d_normed, run.x, norm, run.rstd, grad, needs_dx,
                       l_.mixer->joint_output.spare());
}

at::Tensor FeedForwardBlock::forward_of_mixture(const at::Tensor& x, FeedForwardRun* keep) {
  const Normed in = normed(x, f_.in);
  const at::Tensor answered =
      mixture_forward(f_.mixture, l_.gating, in.y, batch_, keep ? &keep->mixture : nullptr);
  const Normed out = normed(answered, f_.out);
  if (keep) {
    keep->x = x, keep->rstd = in.rstd;
    if (f_.out.defined()) keep->joined.y = answered, keep->joined.rstd = out.rstd;
  }
  return at::add(x, out.y, l_.residual_scale);
}

at::Tensor FeedForwardBlock::backward_of_mixture(FeedForwardRun run, const at::Tensor& grad,
                                                 bool needs_dx) {
  const Norm& norm = f_.in;
  const bool through_norm = needs_dx || norm.parameter != nullptr;
  const at::Tensor scaled = l_.residual_scale == 1 ? grad : grad * l_.residual_scale;
  const at::Tensor d_answered = norm_backward(scaled, run.joined.y, f_.out, run.joined.rstd, {},
                                              through_norm || f_.mixture.trains());
  if (!through_norm && !f_.mixture.trains()) return {};
  const at::Tensor d_normed =
      mixture_backward(f_.mixture, l_.gating, std::move(run.mixture), d_answered,
                       normed(run.x, norm).y, batch_, through_norm)
          .dx;
  if (!through_norm) return {};
  return norm_backward(d_normed, run.x, norm, run.rstd, grad, needs_dx,
                       l_.mixer->joint_output.spare());
}

at::Tensor FeedForwardBlock::forward_of_both(const at::Tensor& x, FeedForwardRun* keep) {
  const Normed in = normed(x, f_.in);
  auto gate_up =
      linears_forward(in.y, gate_up_group(), batch_, keep ? &keep->gate_up_low : nullptr);
  LowRank down_low;
  const at::Tensor dense = linears_forward(
      kernels::gated_forward(l_.gating, gate_up[0], gate_up[1]), {&f_.down}, batch_, &down_low)[0];
  const Normed experts_in = normed(x, f_.experts_in);
  const at::Tensor experts = mixture_forward(f_.mixture, l_.gating, experts_in.y, batch_,
                                             keep ? &keep->mixture : nullptr, x);
  const Normed dense_out = normed(dense, f_.dense_out),
               experts_out = normed(experts, f_.experts_out);
  const at::Tensor sum = dense_out.y + experts_out.y;
  const Normed out = normed(sum, f_.out);
  if (keep) {
    keep->x = x, keep->rstd = in.rstd, keep->experts_in_rstd = experts_in.rstd;
    keep->gate = std::move(gate_up[0]), keep->up = std::move(gate_up[1]);
    keep->dense = dense, keep->dense_rstd = dense_out.rstd;
    keep->experts = experts, keep->experts_rstd = experts_out.rstd;
    keep->joined = {sum, out.rstd, std::move(down_low)};
  }
  return x + out.y;
}

at::Tensor FeedForwardBlock::backward_of_both(FeedForwardRun run, const at::Tensor& grad,
                                              bool needs_dx) {
  const at::Tensor d_sum = norm_backward(grad, run.joined.y, f_.out, run.joined.rstd, {}, true);
  const at::Tensor d_dense =
      norm_backward(d_sum, run.dense, f_.dense_out, run.dense_rstd, {}, true);
  const at::Tensor h =
      trains({&f_.down}) ? kernels::gated_forward(l_.gating, run.gate, run.up) : at::Tensor();
  const at::Tensor dh = linears_backward({d_dense}, h, run.joined.low, {&f_.down}, batch_, true);
  kernels::gated_backward_(l_.gating, dh, run.gate, run.up);
  const at::Tensor d_normed =
      linears_backward({run.gate, run.up}, normed_again(run.x, f_.in, gate_up_group()),
                       run.gate_up_low, gate_up_group(), batch_, true);
  const at::Tensor dx = norm_backward(d_normed, run.x, f_.in, run.rstd, grad, true);
  const at::Tensor d_experts =
      norm_backward(d_sum, run.experts, f_.experts_out, run.experts_rstd, {}, true);
  const MixtureGrads d = mixture_backward(f_.mixture, l_.gating, std::move(run.mixture), d_experts,
                                          normed(run.x, f_.experts_in).y, batch_, true);
  if (!needs_dx && f_.experts_in.parameter == nullptr) return {};
  return norm_backward(d.dx, run.x, f_.experts_in, run.experts_in_rstd, dx + d.d_routed_by, true);
}

void FeedForwardBlock::through_gated_backward(FeedForwardRun& run, const at::Tensor& grad,
                                              bool needs_gates) {
  const Linear& linear = f_.down;
  const Norm& norm = f_.out;
  if (!joins(f_.joint_down, grad)) {
    const at::Tensor h =
        linear.trains() ? kernels::gated_forward(l_.gating, run.gate, run.up) : at::Tensor();
    const at::Tensor dh = join_backward(grad, h, linear, {}, norm, run.joined, needs_gates);
    if (needs_gates) kernels::gated_backward_(l_.gating, dh, run.gate, run.up);
    return;
  }
  const at::Tensor dy =
      summand_grad(grad, norm, run.joined, /*needs_dy=*/true, f_.joint_down.spare());
  auto [h, d_low] = joint_input_grad(dy, f_.joint_down, needs_gates);
  if (needs_gates)  // one kernel: h overwrites its gradient
    kernels::gated_backward_and_forward_(l_.gating, h, run.gate, run.up);
  else
    h = kernels::gated_forward(l_.gating, run.gate, run.up);
  add_joint_adapter_grads(dy, h, {}, run.joined.joint_low, d_low, f_.joint_down);
}

LinearGroup FeedForwardBlock::gate_up_group() const {
  if (f_.fuses_gate_up()) return {&f_.gate_up};
  return {&f_.gate, &f_.up};
}

}  // namespace sftrun::layers
