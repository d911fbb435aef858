#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fused/fused_head.h"
#include "linear/fused_linears.h"
#include "linear/fused_norms.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/thin_tokens.h"
#include "sftrun/layers/backend.h"

namespace sftrun::layers {
namespace {

/// State of a block's last linear and the norm after it, for the backward pass.
struct Joined {
  at::Tensor y, rstd;  ///< output of the linear, if a norm follows
  LowRank low;
  at::Tensor joint_low;  ///< of a joint linear; replaces `low`
};

struct AttentionHalf {
  at::Tensor x, rstd;
  DeltaRun delta;                     ///< of a gated delta net, whose output is attention.out
  at::Tensor gate;                    ///< of the attention output, before its sigmoid
  at::Tensor q, k, v;                 ///< as attention reads them, or before norms and RoPE
  at::Tensor q_rstd, k_rstd, v_rstd;  ///< if they have norms
  kernels::AttentionOutput attention;
  LowRank qkv_low;
  at::Tensor joint_low;  ///< of joint linears; replaces `qkv_low`
  Joined joined;
};

struct FeedForwardHalf {
  at::Tensor x, rstd, gate, up;
  LowRank gate_up_low;
  at::Tensor joint_low, joint_gate_up;  ///< of joint linears; holds gate and up
  Joined joined;
  MixtureRun mixture;  ///< replaces gate, up and what follows
  /// Where experts run in parallel to the dense MLP: outputs of both before their norms.
  at::Tensor dense, dense_rstd, experts, experts_rstd, experts_in_rstd;
};

struct PerLayerHalf {
  at::Tensor x, gate;
  LowRank gate_low;
  Joined joined;
};

/// Forward and backward passes of one layer. Forward passes save what backward needs if `keep` is
/// not null.
class Passes {
 public:
  Passes(const Layer& layer, const BatchContext& batch) : l_(layer), batch_(batch) {}

  /// @param copy receives x, if defined
  AttentionInputs project(const at::Tensor& x, AttentionHalf* keep, const at::Tensor& copy = {}) {
    const Normed in = normed(x, l_.attention_in, copy, spare_of_input(l_.joint_qkv, x));
    auto qkv = joins(l_.joint_qkv, x)
                   ? parts_of_joint(joint_forward(in.y, l_.joint_qkv, /*spare=*/0,
                                                  keep ? &keep->joint_low : nullptr, adapters()),
                                    l_.joint_qkv)
                   : linears_forward(in.y, qkv_group(), batch_, keep ? &keep->qkv_low : nullptr);
    if (l_.fuses_qkv()) qkv = parts(qkv[0], {query_size(), key_size(), key_size()});
    at::Tensor gate;
    if (l_.gates_attention) std::tie(qkv[0], gate) = queries_and_gates(qkv[0]);
    const RawHeads query{qkv[0], &l_.q_norm};
    if (keep) keep->rstd = in.rstd, keep->q = query.x, keep->gate = gate;
    if (borrows_keys()) {
      const kernels::HeadsOutput q = read_heads({query})[0];
      if (keep) keep->q_rstd = q.rstd;
      const LayerExchange::Keys& keys = keys_in_exchange();
      return {q.y, keys.k, keys.v, gate};
    }
    const RawHeads key{qkv[1], &l_.k_norm};
    const at::Tensor& value = l_.value_is_key ? qkv[1] : qkv[2];
    const Normed v = normed_heads(value, l_.v_norm);  // before the keys are rotated in place
    const auto read = read_heads({query, key});
    if (keep) {
      keep->q_rstd = read[0].rstd, keep->k_rstd = read[1].rstd, keep->v_rstd = v.rstd;
      keep->k = key.x, keep->v = value;
    }
    AttentionInputs inputs{read[0].y, read[1].y, v.y, gate};
    if (l_.lends_keys) lend(inputs.k, inputs.v);
    return inputs;
  }

  /// @param copy a copy of x, overwritten with the sum; or undefined
  at::Tensor add_attended(const at::Tensor& x, const at::Tensor& attended, AttentionHalf* keep,
                          const at::Tensor& copy = {}) {
    Joined* joined = keep ? &keep->joined : nullptr;
    return join(x, attended, l_.o, l_.joint_o, l_.attention_out, joined, copy);
  }

  at::Tensor attention_half(const at::Tensor& x, AttentionHalf* keep) {
    if (l_.delta_net.defined()) return delta_net_half(x, keep);
    const at::Tensor copy = copy_for_sum(x, l_.attention_in, l_.joint_o, l_.attention_out);
    const AttentionInputs in = project(x, keep, copy);
    kernels::AttentionOutput attention =
        kernels::attention_forward(in.q, in.k, in.v, batch_, l_.attention, l_.sinks.weight);
    at::Tensor y = add_attended(x, gated_attention(attention.out, in.gate), keep, copy);
    if (keep) {
      keep->x = x;
      keep->attention = std::move(attention);
    }
    return y;
  }

  at::Tensor delta_net_half(const at::Tensor& x, AttentionHalf* keep) {
    const at::Tensor copy = copy_for_sum(x, l_.attention_in, l_.joint_o, l_.attention_out);
    const Normed in = normed(x, l_.attention_in, copy);
    at::Tensor answered =
        delta_net_forward(l_.delta_net, in.y, batch_, keep ? &keep->delta : nullptr);
    at::Tensor y = add_attended(x, answered, keep, copy);
    if (keep) {
      keep->x = x, keep->rstd = in.rstd;
      keep->attention.out = std::move(answered);
    }
    return y;
  }

  at::Tensor feed_forward_half(const at::Tensor& x, FeedForwardHalf* keep) {
    if (l_.mixture.defined())
      return l_.has_dense_half() ? both_halves(x, keep) : mixture_half(x, keep);
    const at::Tensor copy = copy_for_sum(x, l_.feed_forward_in, l_.joint_down, l_.feed_forward_out);
    Normed in = normed(x, l_.feed_forward_in, copy, spare_of_input(l_.joint_gate_up, x));
    std::vector<at::Tensor> gate_up;
    if (joins(l_.joint_gate_up, x)) {
      // Overwritten by their gradients in the backward pass, which needs the padding.
      const at::Tensor both =
          joint_forward(in.y, l_.joint_gate_up, keep ? l_.joint_gate_up.spare() : 0,
                        keep ? &keep->joint_low : nullptr, adapters());
      if (keep) keep->joint_gate_up = both;
      gate_up = parts_of_joint(both, l_.joint_gate_up);
    } else {
      gate_up = linears_forward(in.y, gate_up_group(), batch_, keep ? &keep->gate_up_low : nullptr);
    }
    in.y.reset();
    if (l_.fuses_gate_up()) {
      const int64_t inner = gate_up[0].size(1) / 2;
      gate_up = parts(gate_up[0], {inner, inner});
    }
    const at::Tensor h =
        kernels::gated_forward(l_.gating, gate_up[0], gate_up[1], spare_of_input(l_.joint_down, x));
    Joined* joined = keep ? &keep->joined : nullptr;
    at::Tensor y = join(x, h, l_.down, l_.joint_down, l_.feed_forward_out, joined, copy);
    if (keep) {
      keep->x = x, keep->rstd = in.rstd;
      keep->gate = std::move(gate_up[0]), keep->up = std::move(gate_up[1]);
    }
    return y;
  }

  at::Tensor mixture_half(const at::Tensor& x, FeedForwardHalf* keep) {
    const Normed in = normed(x, l_.feed_forward_in);
    const at::Tensor answered =
        mixture_forward(l_.mixture, l_.gating, in.y, batch_, keep ? &keep->mixture : nullptr);
    const Normed out = normed(answered, l_.feed_forward_out);
    if (keep) {
      keep->x = x, keep->rstd = in.rstd;
      if (l_.feed_forward_out.defined()) keep->joined.y = answered, keep->joined.rstd = out.rstd;
    }
    return at::add(x, out.y, l_.residual_scale);
  }

  at::Tensor mixture_half_backward(FeedForwardHalf half, const at::Tensor& grad, bool needs_dx) {
    const Norm& norm = l_.feed_forward_in;
    const bool through_norm = needs_dx || norm.parameter != nullptr;
    const at::Tensor scaled = l_.residual_scale == 1 ? grad : grad * l_.residual_scale;
    const at::Tensor d_answered =
        norm_backward(scaled, half.joined.y, l_.feed_forward_out, half.joined.rstd, {},
                      through_norm || l_.mixture.trains());
    if (!through_norm && !l_.mixture.trains()) return {};
    const at::Tensor d_normed =
        mixture_backward(l_.mixture, l_.gating, std::move(half.mixture), d_answered,
                         normed(half.x, norm).y, batch_, through_norm)
            .dx;
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx, l_.joint_o.spare());
  }

  /// x + norm(norm(dense(norm(x))) + norm(experts(norm(x), routed by x))), each norm with own
  /// weights.
  at::Tensor both_halves(const at::Tensor& x, FeedForwardHalf* keep) {
    const Normed in = normed(x, l_.feed_forward_in);
    auto gate_up =
        linears_forward(in.y, gate_up_group(), batch_, keep ? &keep->gate_up_low : nullptr);
    LowRank down_low;
    const at::Tensor dense =
        linears_forward(kernels::gated_forward(l_.gating, gate_up[0], gate_up[1]), {&l_.down},
                        batch_, &down_low)[0];
    const Normed experts_in = normed(x, l_.experts_in);
    const at::Tensor experts = mixture_forward(l_.mixture, l_.gating, experts_in.y, batch_,
                                               keep ? &keep->mixture : nullptr, x);
    const Normed dense_out = normed(dense, l_.dense_out),
                 experts_out = normed(experts, l_.experts_out);
    const at::Tensor sum = dense_out.y + experts_out.y;
    const Normed out = normed(sum, l_.feed_forward_out);
    if (keep) {
      keep->x = x, keep->rstd = in.rstd, keep->experts_in_rstd = experts_in.rstd;
      keep->gate = std::move(gate_up[0]), keep->up = std::move(gate_up[1]);
      keep->dense = dense, keep->dense_rstd = dense_out.rstd;
      keep->experts = experts, keep->experts_rstd = experts_out.rstd;
      keep->joined = {sum, out.rstd, std::move(down_low)};
    }
    return x + out.y;
  }

  at::Tensor both_halves_backward(FeedForwardHalf half, const at::Tensor& grad, bool needs_dx) {
    const at::Tensor d_sum =
        norm_backward(grad, half.joined.y, l_.feed_forward_out, half.joined.rstd, {}, true);
    const at::Tensor d_dense =
        norm_backward(d_sum, half.dense, l_.dense_out, half.dense_rstd, {}, true);
    const at::Tensor h =
        trains({&l_.down}) ? kernels::gated_forward(l_.gating, half.gate, half.up) : at::Tensor();
    const at::Tensor dh = linears_backward({d_dense}, h, half.joined.low, {&l_.down}, batch_, true);
    kernels::gated_backward_(l_.gating, dh, half.gate, half.up);
    const at::Tensor d_normed = linears_backward(
        {half.gate, half.up}, normed_again(half.x, l_.feed_forward_in, gate_up_group()),
        half.gate_up_low, gate_up_group(), batch_, true);
    const at::Tensor dx =
        norm_backward(d_normed, half.x, l_.feed_forward_in, half.rstd, grad, true);
    const at::Tensor d_experts =
        norm_backward(d_sum, half.experts, l_.experts_out, half.experts_rstd, {}, true);
    const MixtureGrads d =
        mixture_backward(l_.mixture, l_.gating, std::move(half.mixture), d_experts,
                         normed(half.x, l_.experts_in).y, batch_, true);
    if (!needs_dx && l_.experts_in.parameter == nullptr) return {};
    return norm_backward(d.dx, half.x, l_.experts_in, half.experts_in_rstd, dx + d.d_routed_by,
                         true);
  }

  /// Adds the per-layer inputs (`PerLayerBranch`).
  at::Tensor per_layer_half(const at::Tensor& x, PerLayerHalf* keep) {
    const PerLayerBranch& branch = l_.per_layer;
    const at::Tensor gate =
        linears_forward(x, {&branch.gate}, batch_, keep ? &keep->gate_low : nullptr)[0];
    if (keep) keep->x = x, keep->gate = gate;
    return join(x, kernels::gated_forward(l_.gating, gate, channels()), branch.projection, {},
                branch.out, keep ? &keep->joined : nullptr);
  }

  at::Tensor per_layer_backward(PerLayerHalf half, const at::Tensor& grad) {
    const PerLayerBranch& branch = l_.per_layer;
    at::Tensor up = channels();
    const at::Tensor h = branch.projection.trains()
                             ? kernels::gated_forward(l_.gating, half.gate, up)
                             : at::Tensor();
    const at::Tensor dh =
        join_backward(grad, h, branch.projection, {}, branch.out, half.joined, /*needs_dh=*/true);
    kernels::gated_backward_(l_.gating, dh, half.gate, up);
    if (at::Tensor& all = batch_.exchange->d_per_layer; all.defined())
      all.select(1, l_.index).copy_(up);
    return grad +
           linears_backward({half.gate}, half.x, half.gate_low, {&branch.gate}, batch_, true);
  }

  /// After both blocks: per-layer inputs and the layer's scalar.
  at::Tensor after_halves(at::Tensor y, PerLayerHalf* keep) {
    if (l_.per_layer.defined()) y = per_layer_half(y, keep);
    return l_.scalar.defined() ? y * l_.scalar.weight : y;
  }

  at::Tensor after_halves_backward(PerLayerHalf half, const at::Tensor& grad) {
    const at::Tensor scaled = l_.scalar.defined() ? grad * l_.scalar.weight : grad;
    return l_.per_layer.defined() ? per_layer_backward(std::move(half), scaled) : scaled;
  }

  at::Tensor feed_forward_backward(FeedForwardHalf half, const at::Tensor& grad, bool needs_dx) {
    if (l_.mixture.defined()) {
      return l_.has_dense_half() ? both_halves_backward(std::move(half), grad, needs_dx)
                                 : mixture_half_backward(std::move(half), grad, needs_dx);
    }
    const Norm& norm = l_.feed_forward_in;
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_down = through_norm || trains(gate_up_group());
    through_gated_backward(half, grad, through_down);
    if (!through_down) return {};
    at::Tensor d_normed;
    if (half.joint_gate_up.defined()) {
      half.gate.reset(), half.up.reset();
      d_normed = joint_backward(half.joint_gate_up, half.x, factors_of(norm, half.rstd),
                                half.joint_low, l_.joint_gate_up, through_norm);
      half.joint_gate_up.reset();
    } else {
      std::vector<at::Tensor> grads = {std::move(half.gate), std::move(half.up)};
      if (l_.fuses_gate_up()) grads = {at::cat(grads, 1)};
      d_normed = linears_backward(grads, normed_again(half.x, norm, gate_up_group()),
                                  half.gate_up_low, gate_up_group(), batch_, through_norm);
    }
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx, l_.joint_o.spare());
  }

  /// Gradient of the layer's output -> gradients of gate and up, which overwrite them.
  void through_gated_backward(FeedForwardHalf& half, const at::Tensor& grad, bool needs_gates) {
    const Linear& linear = l_.down;
    const Norm& norm = l_.feed_forward_out;
    if (!joins(l_.joint_down, grad)) {
      const at::Tensor h =
          linear.trains() ? kernels::gated_forward(l_.gating, half.gate, half.up) : at::Tensor();
      const at::Tensor dh = join_backward(grad, h, linear, {}, norm, half.joined, needs_gates);
      if (needs_gates) kernels::gated_backward_(l_.gating, dh, half.gate, half.up);
      return;
    }
    const at::Tensor dy =
        summand_grad(grad, norm, half.joined, /*needs_dy=*/true, l_.joint_down.spare());
    auto [h, d_low] = joint_input_grad(dy, l_.joint_down, needs_gates);
    if (needs_gates)  // one kernel: h overwrites its gradient
      kernels::gated_backward_and_forward_(l_.gating, h, half.gate, half.up);
    else
      h = kernels::gated_forward(l_.gating, half.gate, half.up);
    add_joint_adapter_grads(dy, h, {}, half.joined.joint_low, d_low, l_.joint_down);
  }

  at::Tensor attention_half_backward(AttentionHalf half, const at::Tensor& grad, bool needs_dx) {
    if (l_.delta_net.defined()) return delta_net_half_backward(std::move(half), grad, needs_dx);
    const Norm& norm = l_.attention_in;
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_attention = through_norm || trains(qkv_group()) ||
                                   l_.q_norm.parameter != nullptr ||
                                   l_.k_norm.parameter != nullptr || l_.sinks.parameter != nullptr;
    at::Tensor d_attended =
        join_backward(grad, gated_attention(half.attention.out, half.gate), l_.o, l_.joint_o,
                      l_.attention_out, half.joined, through_attention);
    if (!through_attention) return {};
    at::Tensor d_gate;
    if (l_.gates_attention) std::tie(d_attended, d_gate) = through_gate(half, d_attended);
    if (l_.sinks.parameter) {
      l_.sinks.parameter->grad.add_(
          kernels::attention_sinks_grad(d_attended, half.attention, l_.sinks.weight));
    }
    if (joins(l_.joint_qkv, grad)) {
      const at::Tensor all = kernels::empty_rows(half.x.size(0), l_.joint_qkv.out_features(),
                                                 l_.joint_qkv.spare(), half.x.options());
      joint_attention_backward(half, d_attended, parts_of_joint(all, l_.joint_qkv));
      const at::Tensor d_normed = joint_backward(all, half.x, factors_of(norm, half.rstd),
                                                 half.joint_low, l_.joint_qkv, through_norm);
      if (!through_norm) return {};
      return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx, l_.spare_below);
    }
    kernels::AttentionGrads d = through_attention_backward(half, d_attended);
    std::vector<at::Tensor> grads = {std::move(d.dq)};
    if (!borrows_keys()) {
      grads.push_back(l_.value_is_key ? d.dk.add_(d.dv) : std::move(d.dk));
      if (!l_.value_is_key) grads.push_back(std::move(d.dv));
    }
    if (l_.fuses_qkv()) grads = {at::cat(grads, 1)};
    if (l_.gates_attention) grads[0] = at::stack({by_heads(grads[0]), by_heads(d_gate)}, 2);
    if (l_.gates_attention) grads[0] = grads[0].view({half.x.size(0), -1});
    const at::Tensor d_normed = linears_backward(grads, normed_again(half.x, norm, qkv_group()),
                                                 half.qkv_low, qkv_group(), batch_, through_norm);
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx, l_.spare_below);
  }

  at::Tensor delta_net_half_backward(AttentionHalf half, const at::Tensor& grad, bool needs_dx) {
    const Norm& norm = l_.attention_in;
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_net = through_norm || l_.delta_net.trains();
    const at::Tensor d_answered = join_backward(grad, half.attention.out, l_.o, l_.joint_o,
                                                l_.attention_out, half.joined, through_net);
    if (!through_net) return {};
    const at::Tensor d_normed = delta_net_backward(l_.delta_net, std::move(half.delta), d_answered,
                                                   normed(half.x, norm).y, batch_, through_norm);
    if (!through_norm) return {};
    return norm_backward(d_normed, half.x, norm, half.rstd, grad, needs_dx, l_.spare_below);
  }

  /// Whether anything before the MLP block needs its gradient.
  bool attention_half_trains() const {
    for (const Norm* norm : {&l_.attention_in, &l_.attention_out, &l_.q_norm, &l_.k_norm}) {
      if (norm->parameter != nullptr) return true;
    }
    return trains(qkv_group()) || l_.delta_net.trains() || l_.o.trains() ||
           l_.sinks.parameter != nullptr;
  }

 private:
  LinearGroup qkv_group() const {
    if (l_.fuses_qkv()) return {&l_.qkv};
    if (borrows_keys()) return {&l_.q};
    if (l_.value_is_key) return {&l_.q, &l_.k};
    return {&l_.q, &l_.k, &l_.v};
  }
  LinearGroup gate_up_group() const {
    if (l_.fuses_gate_up()) return {&l_.gate_up};
    return {&l_.gate, &l_.up};
  }
  bool borrows_keys() const { return l_.keys_of >= 0; }
  /// Own or reused keys and values.
  LayerExchange::Keys& keys_in_exchange() const {
    return batch_.exchange->keys.at(static_cast<size_t>(borrows_keys() ? l_.keys_of : l_.index));
  }
  /// With gradient checkpointing the layer runs again and stores the same values; dk and dv are
  /// kept.
  void lend(const at::Tensor& k, const at::Tensor& v) const {
    keys_in_exchange().k = k;
    keys_in_exchange().v = v;
  }
  /// Per-layer inputs of this layer: [T, size].
  at::Tensor channels() const {
    return batch_.exchange->per_layer.select(1, l_.index).clone(at::MemoryFormat::Contiguous);
  }
  int64_t query_size() const { return l_.attention.num_heads * l_.attention.head_dim; }
  int64_t key_size() const { return l_.attention.num_kv_heads * l_.attention.head_dim; }

  /// [T, heads * head_dim] as [T, heads, head_dim]
  at::Tensor by_heads(const at::Tensor& x) const {
    return x.view({x.size(0), -1, l_.attention.head_dim});
  }

  /// Splits q_proj's output [T, heads * 2 * head_dim] into queries and gates.
  std::pair<at::Tensor, at::Tensor> queries_and_gates(const at::Tensor& both) const {
    const at::Tensor heads = both.view({both.size(0), -1, 2, l_.attention.head_dim});
    return {heads.select(2, 0).reshape({both.size(0), -1}),
            heads.select(2, 1).reshape({both.size(0), -1})};
  }

  /// Gradient of the gated attention output -> gradients of the output and of the gate.
  static std::pair<at::Tensor, at::Tensor> through_gate(const AttentionHalf& half,
                                                        const at::Tensor& d_gated) {
    const at::Tensor opening = at::sigmoid(half.gate);
    return {d_gated * opening, d_gated * half.attention.out * opening * (1 - opening)};
  }

  /// Whether x [T, ...] is multiplied by a joint matrix. With few tokens a quantised one is not
  /// dequantised; `thin_product` multiplies by its codes instead.
  static bool joins(const JointLinears& joint, const at::Tensor& x) {
    return joint.defined() && (!joint.is_quantized() || x.size(0) > kernels::kMostThinTokens);
  }

  bool adapters() const { return batch_.adapters; }

  /// Unused columns needed after each row of the input of a joint linear.
  int64_t spare_of_input(const JointLinears& joint, const at::Tensor& x) const {
    return joins(joint, x) && adapters() ? joint.spare() : 0;
  }

  /// Adds the adapters' gradients; returns the gradient of the linears' input.
  static at::Tensor joint_backward(const at::Tensor& dy, const at::Tensor& x,
                                   const kernels::NormFactors& norm, const at::Tensor& low,
                                   const JointLinears& joint, bool needs_dx) {
    const auto [dx, d_low] = joint_input_grad(dy, joint, needs_dx);
    if (joint.has_adapters()) add_joint_adapter_grads(dy, x, norm, low, d_low, joint);
    return dx;
  }

  /// Memory for a copy of x, which the norm kernel makes, if a joint linear's result will be added
  /// to x in place; else undefined.
  at::Tensor copy_for_sum(const at::Tensor& x, const Norm& in, const JointLinears& joint,
                          const Norm& out) const {
    const bool adds = joins(joint, x) && in.defined() && !out.defined() && l_.residual_scale == 1;
    return adds ? at::empty_like(x) : at::Tensor();
  }

  /// Each member's columns of a joint result.
  static std::vector<at::Tensor> parts_of_joint(const at::Tensor& all, const JointLinears& joint) {
    std::vector<at::Tensor> result;
    int64_t first = 0;
    for (const Linear* linear : joint.members) {
      result.push_back(all.narrow(1, first, linear->matrix().size(0)));
      first += linear->matrix().size(0);
    }
    return result;
  }

  /// Splits columns into contiguous tensors.
  static std::vector<at::Tensor> parts(const at::Tensor& x, const std::vector<int64_t>& sizes) {
    std::vector<at::Tensor> result;
    int64_t first = 0;
    for (const int64_t size : sizes) {
      result.push_back(x.narrow(1, first, size).contiguous());
      first += size;
    }
    return result;
  }

  /// Queries or keys before norm and RoPE.
  struct RawHeads {
    at::Tensor x;
    const Norm* norm;
  };
  const kernels::RopeAngles* angles() const {
    return l_.rope < 0 ? nullptr : &batch_.ropes[static_cast<size_t>(l_.rope)];
  }
  /// Whether a norm applies to each head; else to all heads of a token together, or is not present.
  bool is_of_heads(const Norm& norm) const {
    return norm.defined() && norm.weight.numel() == l_.attention.head_dim;
  }

  /// Applies norm and RoPE; without a norm in place.
  std::vector<kernels::HeadsOutput> read_heads(const std::vector<RawHeads>& heads) const {
    std::vector<kernels::HeadsInput> inputs;
    std::vector<at::Tensor> rstd_of_rows;
    for (const auto& [x, norm] : heads) {
      if (is_of_heads(*norm)) {
        inputs.push_back({x, norm->weight, norm->eps, norm->offset});
        rstd_of_rows.emplace_back();
        continue;
      }
      const Normed rows = normed_heads(x, *norm);
      inputs.push_back({rows.y, {}});
      rstd_of_rows.push_back(rows.rstd);
    }
    if (angles() == nullptr && std::none_of(inputs.begin(), inputs.end(), [](const auto& input) {
          return input.weight.defined();
        })) {
      std::vector<kernels::HeadsOutput> outputs;
      for (size_t i = 0; i < inputs.size(); ++i) outputs.push_back({inputs[i].x, rstd_of_rows[i]});
      return outputs;
    }
    std::vector<kernels::HeadsOutput> outputs =
        kernels::heads_forward(inputs, angles(), l_.attention.head_dim);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (rstd_of_rows[i].defined()) outputs[i].rstd = rstd_of_rows[i];
    return outputs;
  }

  /// x + residual_scale * norm(linear(h)), in one pass if there is neither norm nor scale.
  /// @param joint joint linear of `linear` alone, used where possible
  /// @param copy result of `copy_for_sum`, overwritten with the sum; or undefined
  at::Tensor join(const at::Tensor& x, const at::Tensor& h, const Linear& linear,
                  const JointLinears& joint, const Norm& norm, Joined* keep,
                  const at::Tensor& copy = {}) {
    if (!joins(joint, x)) {
      LowRank* low = keep ? &keep->low : nullptr;
      if (!norm.defined() && l_.residual_scale == 1)
        return linears_forward(h, {&linear}, batch_, low, x)[0];
      return normed_sum(x, linears_forward(h, {&linear}, batch_, low)[0], norm, keep);
    }
    at::Tensor* low = keep ? &keep->joint_low : nullptr;
    if (!copy.defined())
      return normed_sum(x, joint_forward(h, joint, /*spare=*/0, low, adapters()), norm, keep);
    add_joint_forward(h, joint, low, copy, adapters());
    return copy;
  }

  /// x + residual_scale * norm(y)
  at::Tensor normed_sum(const at::Tensor& x, const at::Tensor& y, const Norm& norm, Joined* keep) {
    const Normed out = normed(y, norm);
    if (keep && norm.defined()) keep->y = y, keep->rstd = out.rstd;
    return at::add(x, out.y, l_.residual_scale);
  }

  /// Gradient of what `join` adds to x, given that of the sum.
  at::Tensor summand_grad(const at::Tensor& grad, const Norm& norm, Joined& kept, bool needs_dy,
                          int64_t spare = 0) {
    const at::Tensor scaled = l_.residual_scale == 1 ? grad : grad * l_.residual_scale;
    at::Tensor dy = norm_backward(scaled, kept.y, norm, kept.rstd, {}, needs_dy, spare);
    kept.y.reset();
    return dy;
  }

  /// Returns the gradient of h; that of x is `grad` itself.
  at::Tensor join_backward(const at::Tensor& grad, const at::Tensor& h, const Linear& linear,
                           const JointLinears& joint, const Norm& norm, Joined& kept,
                           bool needs_dh) {
    if (joins(joint, grad)) {
      const at::Tensor dy = summand_grad(grad, norm, kept, /*needs_dy=*/true, joint.spare());
      return joint_backward(dy, h, {}, kept.joint_low, joint, needs_dh);
    }
    const at::Tensor dy = summand_grad(grad, norm, kept, needs_dh || linear.trains());
    if (!dy.defined()) return {};
    return linears_backward({dy}, h, kept.low, {&linear}, batch_, needs_dh);
  }

  /// Recomputes q and k as attention reads them; saved ones without a norm are already in that
  /// form.
  std::vector<at::Tensor> read_again(const std::vector<RawHeads>& kept) const {
    std::vector<RawHeads> normed;
    for (const RawHeads& heads : kept)
      if (heads.norm->defined()) normed.push_back(heads);
    std::vector<kernels::HeadsOutput> read;
    if (!normed.empty()) read = read_heads(normed);
    std::vector<at::Tensor> result;
    auto next = read.begin();
    for (const RawHeads& heads : kept)
      result.push_back(heads.norm->defined() ? next++->y : heads.x);
    return result;
  }

  /// Gradients of attention's inputs -> gradients of the linears' outputs.
  std::vector<at::Tensor> heads_grads(const std::vector<RawHeads>& kept,
                                      const std::vector<at::Tensor>& grads,
                                      const std::vector<at::Tensor>& rstd) const {
    std::vector<kernels::HeadsInput> inputs;
    // A norm with a trained weight needs the gradient between norm and RoPE.
    const auto is_at_once = [&](const Norm& norm) {
      return is_of_heads(norm) && norm.parameter == nullptr;
    };
    bool does_something = angles() != nullptr;
    for (const auto& [x, norm] : kept) {
      inputs.push_back(
          {x, is_at_once(*norm) ? norm->weight : at::Tensor(), norm->eps, norm->offset});
      does_something = does_something || is_at_once(*norm);
    }
    std::vector<at::Tensor> result =
        does_something
            ? kernels::heads_backward(inputs, grads, rstd, angles(), l_.attention.head_dim)
            : grads;
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto& [x, norm] = kept[i];
      if (!norm->defined() || is_at_once(*norm)) continue;
      result[i] = norm_backward(rows_of(result[i], *norm), rows_of(x, *norm), *norm, rstd[i], {},
                                /*needs_dx=*/true)
                      .view_as(x);
    }
    return result;
  }

  /// Writes the gradients of q, k and v to columns of the joint linear's output gradient.
  void joint_attention_backward(const AttentionHalf& half, const at::Tensor& d_attended,
                                const std::vector<at::Tensor>& into) const {
    const RawHeads query{half.q, &l_.q_norm}, key{half.k, &l_.k_norm};
    const std::vector<at::Tensor> read = read_again({query, key});
    const kernels::AttentionGrads d = kernels::attention_backward(
        d_attended, read[0], read[1], half.v, half.attention, batch_, l_.attention);
    const std::vector<at::Tensor> rstd = {half.q_rstd, half.k_rstd, {}};
    if (l_.q_norm.parameter || l_.k_norm.parameter) {
      const auto grads = heads_grads({query, key}, {d.dq, d.dk}, rstd);
      into[0].copy_(grads[0]), into[1].copy_(grads[1]), into[2].copy_(d.dv);
      return;
    }
    const auto input = [](const RawHeads& heads) {
      return kernels::HeadsInput{heads.x, heads.norm->weight, heads.norm->eps, heads.norm->offset};
    };
    kernels::HeadsInput value;
    value.x = half.v, value.rotates = false;
    kernels::heads_backward({input(query), input(key), value}, {d.dq, d.dk, d.dv}, rstd, angles(),
                            l_.attention.head_dim, into);
  }

  /// Gradients of q, k and v; only of q if keys and values are reused, whose gradients are added to
  /// the exchange.
  kernels::AttentionGrads through_attention_backward(const AttentionHalf& half,
                                                     const at::Tensor& d_attended) const {
    const RawHeads query{half.q, &l_.q_norm}, key{half.k, &l_.k_norm};
    if (borrows_keys()) {
      LayerExchange::Keys& keys = keys_in_exchange();
      kernels::AttentionGrads d = kernels::attention_backward(
          d_attended, read_again({query})[0], keys.k, keys.v, half.attention, batch_, l_.attention);
      keys.dk = keys.dk.defined() ? keys.dk + d.dk : d.dk;
      keys.dv = keys.dv.defined() ? keys.dv + d.dv : d.dv;
      return {heads_grads({query}, {d.dq}, {half.q_rstd})[0], {}, {}};
    }
    const std::vector<at::Tensor> read = read_again({query, key});
    kernels::AttentionGrads d =
        kernels::attention_backward(d_attended, read[0], read[1], normed_heads(half.v, l_.v_norm).y,
                                    half.attention, batch_, l_.attention);
    if (l_.lends_keys) {
      const LayerExchange::Keys& keys = keys_in_exchange();
      if (keys.dk.defined()) d.dk.add_(keys.dk), d.dv.add_(keys.dv);
    }
    const auto grads = heads_grads({query, key}, {d.dq, d.dk}, {half.q_rstd, half.k_rstd});
    d.dq = grads[0], d.dk = grads[1];
    if (l_.v_norm.defined()) {
      d.dv = norm_backward(rows_of(d.dv, l_.v_norm), rows_of(half.v, l_.v_norm), l_.v_norm,
                           half.v_rstd, {}, true)
                 .view_as(half.v);
    }
    return d;
  }

  const Layer& l_;
  const BatchContext& batch_;
};

class FusedRun final : public LayerRun {
 public:
  FusedRun(const Layer& layer, const BatchContext& batch) : passes_(layer, batch) {}

  at::Tensor forward(const at::Tensor& x) {
    return passes_.after_halves(
        passes_.feed_forward_half(passes_.attention_half(x, &attention_), &feed_forward_),
        &per_layer_);
  }

  at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) override {
    const at::NoGradGuard no_grad;
    const bool needs_middle = needs_input_grad || passes_.attention_half_trains();
    const at::Tensor after = passes_.after_halves_backward(std::move(per_layer_), grad);
    const at::Tensor middle =
        passes_.feed_forward_backward(std::move(feed_forward_), after, needs_middle);
    if (!needs_middle) return {};
    return passes_.attention_half_backward(std::move(attention_), middle, needs_input_grad);
  }

 private:
  Passes passes_;
  AttentionHalf attention_;
  FeedForwardHalf feed_forward_;
  PerLayerHalf per_layer_;
};

at::Tensor fused_layer_forward(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                               std::unique_ptr<LayerRun>* run) {
  const at::NoGradGuard no_grad;
  if (run == nullptr) {
    Passes passes(layer, batch);
    return passes.after_halves(passes.feed_forward_half(passes.attention_half(x, nullptr), nullptr),
                               nullptr);
  }
  SFTRUN_CHECK(batch.adapters);
  auto kept = std::make_unique<FusedRun>(layer, batch);
  at::Tensor y = kept->forward(x);
  *run = std::move(kept);
  return y;
}

}  // namespace

at::Tensor gated_attention(const at::Tensor& attended, const at::Tensor& gate) {
  return gate.defined() ? attended * at::sigmoid(gate) : attended;
}

at::Tensor delta_net_answer(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                            DeltaState& state) {
  return delta_net_forward(layer.delta_net, normed(x, layer.attention_in).y, batch, nullptr,
                           &state);
}

at::Tensor delta_net_next(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                          DeltaState& state) {
  return delta_net_step(layer.delta_net, normed(x, layer.attention_in).y, batch, state);
}

AttentionInputs attention_inputs(const Layer& layer, const at::Tensor& x,
                                 const BatchContext& batch) {
  return Passes(layer, batch).project(x, nullptr);
}

at::Tensor after_attention(const Layer& layer, const at::Tensor& x, const at::Tensor& attended,
                           const BatchContext& batch) {
  Passes passes(layer, batch);
  return passes.after_halves(
      passes.feed_forward_half(passes.add_attended(x, attended, nullptr), nullptr), nullptr);
}

const Backend& fused_backend() {
  static const Backend backend{"fused", fused_layer_forward, fused_head_loss, fused_label_losses};
  return backend;
}

}  // namespace sftrun::layers
