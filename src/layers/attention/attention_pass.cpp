#include "attention/attention_pass.h"

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <utility>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"

namespace sftrun::layers {
namespace {

/// [T, heads * head_dim] as [T, heads, head_dim]
at::Tensor by_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), -1, head_dim});
}

/// Splits q_proj's output [T, heads * 2 * head_dim] into queries and gates.
std::pair<at::Tensor, at::Tensor> queries_and_gates(const at::Tensor& both, int64_t head_dim) {
  const at::Tensor heads = both.view({both.size(0), -1, 2, head_dim});
  const auto half_of = [&](int64_t half) {
    // Of a single head, reshape returns a view whose rows are not adjacent.
    return heads.select(2, half).reshape({both.size(0), -1}).contiguous();
  };
  return {half_of(0), half_of(1)};
}

/// Gradient of q_proj's output from those of queries and gates.
at::Tensor queries_and_gates_grad(const at::Tensor& d_query, const at::Tensor& d_gate,
                                  int64_t head_dim) {
  return at::stack({by_heads(d_query, head_dim), by_heads(d_gate, head_dim)}, 2)
      .view({d_query.size(0), -1});
}

/// Gradient of the gated attention output -> gradients of the output and of the gate.
std::pair<at::Tensor, at::Tensor> gated_attention_backward(const at::Tensor& d_gated,
                                                           const at::Tensor& attended,
                                                           const at::Tensor& gate) {
  const at::Tensor opening = at::sigmoid(gate);
  return {d_gated * opening, d_gated * attended * opening * (1 - opening)};
}

}  // namespace

at::Tensor gated_attention(const at::Tensor& attended, const at::Tensor& gate) {
  return gate.defined() ? attended * at::sigmoid(gate) : attended;
}

at::Tensor AttentionPass::forward(const at::Tensor& x, bool keeps) {
  return forward(x, keeps ? &run_.emplace() : nullptr);
}

at::Tensor AttentionPass::backward(const at::Tensor& grad, bool needs_dx) {
  Run run = std::exchange(run_, std::nullopt).value();
  return backward(std::move(run), grad, needs_dx);
}

AttentionInputs AttentionPass::project(const at::Tensor& x, Run* keep, const at::Tensor& copy) {
  const Normed in = normed(x, l_.mixer_in, copy, spare_of_input(a_.joint_qkv, x));
  auto qkv = joins(a_.joint_qkv, x)
                 ? parts_of_joint(joint_forward(in.y, a_.joint_qkv, /*spare=*/0,
                                                keep ? &keep->joint_low : nullptr, adapters()),
                                  a_.joint_qkv)
                 : linears_forward(in.y, qkv_group(), batch_, keep ? &keep->qkv_low : nullptr);
  if (a_.fuses_qkv()) qkv = parts(qkv[0], {a_.query_size(), a_.key_size(), a_.key_size()});
  at::Tensor gate;
  if (a_.gates_output) std::tie(qkv[0], gate) = queries_and_gates(qkv[0], a_.shape.head_dim);
  const RawHeads query{qkv[0], &a_.q_norm};
  if (keep) keep->rstd = in.rstd, keep->q = query.x, keep->gate = gate;
  if (a_.borrows_keys()) {
    const kernels::HeadsOutput q = heads_.forward({query})[0];
    if (keep) keep->q_rstd = q.rstd;
    const SharedLayerState::Keys& keys = shared_keys();
    return {q.y, keys.k, keys.v, gate};
  }
  const RawHeads key{qkv[1], &a_.k_norm};
  const at::Tensor& value = a_.value_is_key ? qkv[1] : qkv[2];
  const Normed v = normed_heads(value, a_.v_norm);  // before the keys are rotated in place
  const auto read = heads_.forward({query, key});
  if (keep) {
    keep->q_rstd = read[0].rstd, keep->k_rstd = read[1].rstd, keep->v_rstd = v.rstd;
    keep->k = key.x, keep->v = value;
  }
  AttentionInputs inputs{read[0].y, read[1].y, v.y, gate};
  if (a_.shares_kv) lend(inputs.k, inputs.v);
  return inputs;
}

at::Tensor AttentionPass::add_attended(const at::Tensor& x, const at::Tensor& attended, Run* keep,
                                       const at::Tensor& copy) {
  Joined* joined = keep ? &keep->joined : nullptr;
  return join(x, attended, a_.output, a_.joint_output, l_.mixer_out, joined, copy);
}

at::Tensor AttentionPass::forward(const at::Tensor& x, Run* keep) {
  const at::Tensor copy = copy_for_sum(x, l_.mixer_in, a_.joint_output, l_.mixer_out);
  const AttentionInputs in = project(x, keep, copy);
  SharedAttention::Output attention = shared_.forward(in.q, in.k, in.v);
  at::Tensor y = add_attended(x, gated_attention(attention.rows, in.gate), keep, copy);
  if (keep) {
    keep->x = x;
    keep->attention = std::move(attention);
  }
  return y;
}

at::Tensor AttentionPass::backward(Run run, const at::Tensor& grad, bool needs_dx) {
  const Norm& norm = l_.mixer_in;
  const bool through_norm = needs_dx || norm.parameter != nullptr,
             through_attention = through_norm || trains(qkv_group()) ||
                                 a_.q_norm.parameter != nullptr || a_.k_norm.parameter != nullptr ||
                                 a_.sinks.parameter != nullptr;
  at::Tensor d_attended =
      join_backward(grad, gated_attention(run.attention.rows, run.gate), a_.output, a_.joint_output,
                    l_.mixer_out, run.joined, through_attention);
  if (!through_attention) return {};
  at::Tensor d_gate;
  if (a_.gates_output)
    std::tie(d_attended, d_gate) =
        gated_attention_backward(d_attended, run.attention.rows, run.gate);
  if (a_.sinks.parameter) shared_.add_sinks_gradient(d_attended, run.attention.kept);
  if (joins(a_.joint_qkv, grad)) {
    const at::Tensor all = kernels::empty_rows(run.x.size(0), a_.joint_qkv.out_features(),
                                               a_.joint_qkv.spare(), run.x.options());
    joint_attention_backward(run, d_attended, parts_of_joint(all, a_.joint_qkv));
    const at::Tensor d_normed = joint_backward(all, run.x, factors_of(norm, run.rstd),
                                               run.joint_low, a_.joint_qkv, through_norm);
    if (!through_norm) return {};
    return norm_backward(d_normed, run.x, norm, run.rstd, grad, needs_dx, l_.spare_below);
  }
  kernels::AttentionGrads d = through_attention_backward(run, d_attended);
  std::vector<at::Tensor> grads = {std::move(d.dq)};
  if (!a_.borrows_keys()) {
    grads.push_back(a_.value_is_key ? d.dk.add_(d.dv) : std::move(d.dk));
    if (!a_.value_is_key) grads.push_back(std::move(d.dv));
  }
  if (a_.fuses_qkv()) grads = {at::cat(grads, 1)};
  if (a_.gates_output) grads[0] = queries_and_gates_grad(grads[0], d_gate, a_.shape.head_dim);
  const at::Tensor d_normed = linears_backward(grads, normed_again(run.x, norm, qkv_group()),
                                               run.qkv_low, qkv_group(), batch_, through_norm);
  if (!through_norm) return {};
  return norm_backward(d_normed, run.x, norm, run.rstd, grad, needs_dx, l_.spare_below);
}

bool AttentionPass::needs_gradient() const {
  for (const Norm* norm : {&l_.mixer_in, &l_.mixer_out, &a_.q_norm, &a_.k_norm}) {
    if (norm->parameter != nullptr) return true;
  }
  return trains(qkv_group()) || a_.output.trains() || a_.sinks.parameter != nullptr;
}

LinearGroup AttentionPass::qkv_group() const {
  if (a_.fuses_qkv()) return {&a_.qkv};
  if (a_.borrows_keys()) return {&a_.q};
  if (a_.value_is_key) return {&a_.q, &a_.k};
  return {&a_.q, &a_.k, &a_.v};
}

SharedLayerState::Keys& AttentionPass::shared_keys() const {
  return batch_.shared_state->keys.at(
      static_cast<size_t>(a_.borrows_keys() ? a_.keys_of : l_.index));
}

void AttentionPass::lend(const at::Tensor& k, const at::Tensor& v) const {
  shared_keys().k = k;
  shared_keys().v = v;
}

void AttentionPass::joint_attention_backward(const Run& run, const at::Tensor& d_attended,
                                             const std::vector<at::Tensor>& into) const {
  const RawHeads query{run.q, &a_.q_norm}, key{run.k, &a_.k_norm};
  const std::vector<at::Tensor> read = heads_.forward_again({query, key});
  const kernels::AttentionGrads d =
      shared_.backward(d_attended, read[0], read[1], run.v, run.attention.kept);
  const std::vector<at::Tensor> rstd = {run.q_rstd, run.k_rstd, {}};
  if (a_.q_norm.parameter || a_.k_norm.parameter) {
    const auto grads = heads_.backward({query, key}, {d.dq, d.dk}, rstd);
    into[0].copy_(grads[0]), into[1].copy_(grads[1]), into[2].copy_(d.dv);
    return;
  }
  heads_.backward_into({query, key}, run.v, d, rstd, into);
}

kernels::AttentionGrads AttentionPass::through_attention_backward(
    const Run& run, const at::Tensor& d_attended) const {
  const RawHeads query{run.q, &a_.q_norm}, key{run.k, &a_.k_norm};
  if (a_.borrows_keys()) {
    SharedLayerState::Keys& keys = shared_keys();
    kernels::AttentionGrads d = shared_.backward(d_attended, heads_.forward_again({query})[0],
                                                 keys.k, keys.v, run.attention.kept);
    keys.dk = keys.dk.defined() ? keys.dk + d.dk : d.dk;
    keys.dv = keys.dv.defined() ? keys.dv + d.dv : d.dv;
    return {heads_.backward({query}, {d.dq}, {run.q_rstd})[0], {}, {}};
  }
  const std::vector<at::Tensor> read = heads_.forward_again({query, key});
  kernels::AttentionGrads d = shared_.backward(
      d_attended, read[0], read[1], normed_heads(run.v, a_.v_norm).y, run.attention.kept);
  if (a_.shares_kv) {
    const SharedLayerState::Keys& keys = shared_keys();
    if (keys.dk.defined()) d.dk.add_(keys.dk), d.dv.add_(keys.dv);
  }
  const auto grads = heads_.backward({query, key}, {d.dq, d.dk}, {run.q_rstd, run.k_rstd});
  d.dq = grads[0], d.dk = grads[1];
  if (a_.v_norm.defined()) {
    d.dv = norm_backward(rows_of(d.dv, a_.v_norm), rows_of(run.v, a_.v_norm), a_.v_norm, run.v_rstd,
                         {}, true)
               .view_as(run.v);
  }
  return d;
}

}  // namespace sftrun::layers
