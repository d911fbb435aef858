#include "sftrun/layers/delta_net.h"

#include <ATen/ATen.h>

#include <cmath>

#include "delta_net/rule_heads.h"
#include "linear/fused_linears.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/causal_conv.h"
#include "sftrun/kernels/delta_chunks.h"
#include "sftrun/kernels/delta_rule.h"

namespace sftrun::layers {
namespace {

LinearGroup projections(const DeltaNet& net) {
  return {&net.in_qkv, &net.in_z, &net.in_b, &net.in_a};
}

/// Decay and update gate per token and head, fp32.
struct Gates {
  at::Tensor g, beta;  // [T, H]
  at::Tensor rate;     // [H]: -exp(a_log)
};
Gates gates_of(const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& a,
               const at::Tensor& b) {
  Gates gates;
  gates.rate = a_log.to(at::kFloat).exp().neg_();
  gates.g = at::softplus(a.to(at::kFloat) + dt_bias.to(at::kFloat)).mul_(gates.rate);
  gates.beta = at::sigmoid(b.to(at::kFloat));
  return gates;
}

/// [T, H] -> [N, H, kChunk], 0 at padding.
at::Tensor cut_gate(const at::Tensor& gate, const kernels::Chunks& chunks) {
  return (chunks.cut(gate) * chunks.real.unsqueeze(-1)).transpose(1, 2).contiguous();
}

kernels::RuleInputs rule_inputs(const Gates& gates, const at::Tensor& convolved,
                                const kernels::Chunks& chunks) {
  return {at::silu(convolved), cut_gate(gates.g, chunks), cut_gate(gates.beta, chunks)};
}

/// One row per token and head, [T * H, V].
at::Tensor head_rows(const at::Tensor& x, const DeltaNet& net) {
  return x.view({-1, net.value_dim});
}

/// norm(read) * silu(z)
at::Tensor gated_norm(const DeltaNet& net, const at::Tensor& read, const at::Tensor& z) {
  const at::Tensor normed = kernels::rms_norm_forward(head_rows(read, net), net.norm.weight,
                                                      net.norm.eps, net.norm.offset)
                                .first;
  return kernels::gated_forward(kernels::Activation::kSilu, z, normed.view_as(z));
}

/// The last `count` inputs of the convolution, zero-padded at the front.
at::Tensor last_inputs(const at::Tensor& qkv, int64_t count) {
  const int64_t present = std::min(count, qkv.size(0));
  return at::cat({at::zeros({count - present, qkv.size(1)}, qkv.options()),
                  qkv.narrow(0, qkv.size(0) - present, present)});
}

/// Which expensive gradients are needed.
struct Wanted {
  bool read, projected, conv_input;
};
Wanted wanted_of(const DeltaNet& net, bool needs_dx) {
  Wanted wanted;
  wanted.conv_input = needs_dx || net.in_qkv.trains();
  const bool gates = net.in_a.trains() || net.in_b.trains() || net.a_log.parameter != nullptr ||
                     net.dt_bias.parameter != nullptr;
  wanted.read = wanted.conv_input || gates || net.conv.parameter != nullptr;
  wanted.projected = needs_dx || trains(projections(net));
  return wanted;
}

/// Gradients of the projections' outputs.
struct ProjectionGrads {
  at::Tensor qkv, z, b, a;
};

/// Returns the gradient of `run.read`, undefined if not needed.
at::Tensor gated_norm_backward(const DeltaNet& net, DeltaRun& run, const at::Tensor& d_out,
                               bool needs_d_read, ProjectionGrads& grads) {
  const at::Tensor rows = head_rows(run.read, net);
  auto [normed, rstd] =
      kernels::rms_norm_forward(rows, net.norm.weight, net.norm.eps, net.norm.offset);
  grads.z = std::move(run.z);
  at::Tensor up = normed.view_as(grads.z);
  kernels::gated_backward_(kernels::Activation::kSilu, d_out, grads.z,
                           up);  // overwritten by their gradients
  if (net.norm.parameter)
    net.norm.parameter->grad.add_(kernels::rms_norm_weight_grad(normed, rows, rstd));
  if (!needs_d_read) return {};
  return kernels::rms_norm_backward(normed, rows, net.norm.weight, rstd, {}, net.norm.offset)
      .view_as(run.read);
}

/// Gradient of g [T, H] -> gradients of a, a_log and dt_bias.
void decay_backward(const DeltaNet& net, const RuleHeads& heads, const Gates& gates,
                    const at::Tensor& d_g, const at::Tensor& a, ProjectionGrads& grads) {
  if (net.a_log.parameter) heads.add_gradient(net.a_log, (d_g * gates.g).sum(0));
  const at::Tensor slope = at::sigmoid(a.to(at::kFloat) + heads.dt_bias().to(at::kFloat));
  const at::Tensor d_a = slope.mul_(d_g).mul_(gates.rate);
  if (net.dt_bias.parameter) heads.add_gradient(net.dt_bias, d_a.sum(0));
  grads.a = heads.rows(d_a.to(a.scalar_type()));
}

/// Gradient of the recurrence's output -> gradients of qkv, b and a.
void rule_and_conv_backward(const DeltaNet& net, const DeltaRun& run, const at::Tensor& d_read,
                            const BatchContext& batch, bool needs_d_qkv, ProjectionGrads& grads) {
  const kernels::Chunks chunks = kernels::chunks_of(batch, d_read.device());
  const RuleHeads heads(net, batch);
  const at::Tensor qkv = heads.columns_of_channels(run.qkv), a = heads.columns(run.a);
  const Gates gates = gates_of(heads.a_log(), heads.dt_bias(), a, heads.columns(run.b));
  const at::Tensor convolved = kernels::causal_conv_forward(qkv, heads.conv(), chunks);
  const kernels::RuleGrads rule =
      kernels::delta_rule_backward(chunks.cut(heads.columns(d_read)),
                                   rule_inputs(gates, convolved, chunks), heads.shape(), chunks);
  grads.b = heads.rows(chunks.join(rule.b.transpose(1, 2)).to(run.b.scalar_type()));
  decay_backward(net, heads, gates, chunks.join(rule.g.transpose(1, 2)), a, grads);
  if (!needs_d_qkv && !net.conv.parameter) return;
  const kernels::ConvGrads conv =
      kernels::causal_conv_backward(at::silu_backward(rule.qkv, convolved), qkv, heads.conv(),
                                    chunks, needs_d_qkv, net.conv.parameter != nullptr);
  if (net.conv.parameter) heads.add_conv_gradient(conv.weight);
  if (needs_d_qkv) grads.qkv = heads.rows_of_channels(conv.x);
}

/// Backward pass of the projections that train or lead to dx.
at::Tensor projections_backward(const DeltaNet& net, const DeltaRun& run,
                                const ProjectionGrads& grads, const at::Tensor& x,
                                const BatchContext& batch, bool needs_dx) {
  const LinearGroup all = projections(net);
  const at::Tensor* sources[] = {&grads.qkv, &grads.z, &grads.b, &grads.a};
  LinearGroup group;
  std::vector<at::Tensor> d;
  LowRank low;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!needs_dx && !all[i]->trains()) continue;
    group.push_back(all[i]);
    d.push_back(*sources[i]);
    low.push_back(run.low[i]);
  }
  return linears_backward(d, x, low, group, batch, needs_dx);
}

}  // namespace

at::Tensor delta_net_forward(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                             DeltaRun* keep, DeltaState* state) {
  SFTRUN_CHECK(state == nullptr || batch.cu_seqlens.size() == 2);
  DeltaRun run;
  const auto projected = linears_forward(x, projections(net), batch, keep ? &run.low : nullptr);
  run.qkv = projected[0], run.z = projected[1], run.b = projected[2], run.a = projected[3];
  const kernels::Chunks chunks = kernels::chunks_of(batch, x.device());
  const RuleHeads heads(net, batch);
  const kernels::RuleInputs in = rule_inputs(
      gates_of(heads.a_log(), heads.dt_bias(), heads.columns(run.a), heads.columns(run.b)),
      kernels::causal_conv_forward(heads.columns_of_channels(run.qkv), heads.conv(), chunks),
      chunks);
  run.read = heads.rows(chunks.join(kernels::delta_rule_forward(
      in, heads.shape(), chunks, x.scalar_type(), state ? &state->memory : nullptr)));
  if (state) state->conv = last_inputs(run.qkv, net.conv.weight.size(1) - 1);
  at::Tensor out = gated_norm(net, run.read, run.z);
  if (keep) *keep = std::move(run);
  return out;
}

at::Tensor delta_net_backward(const DeltaNet& net, DeltaRun run, const at::Tensor& d_out,
                              const at::Tensor& x, const BatchContext& batch, bool needs_dx) {
  const Wanted wanted = wanted_of(net, needs_dx);
  ProjectionGrads grads;
  const at::Tensor d_read = gated_norm_backward(net, run, d_out, wanted.read, grads);
  if (wanted.read) rule_and_conv_backward(net, run, d_read, batch, wanted.conv_input, grads);
  if (!wanted.projected) return {};
  return projections_backward(net, run, grads, x, batch, needs_dx);
}

at::Tensor delta_net_step(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch,
                          DeltaState& state) {
  const auto projected = linears_forward(x, projections(net), batch, nullptr);
  const at::Tensor &qkv = projected[0], &z = projected[1], &b = projected[2], &a = projected[3];
  const at::Tensor window = at::cat({state.conv, qkv});
  state.conv = window.narrow(0, 1, state.conv.size(0));
  const at::Tensor convolved =
      at::silu((window.to(at::kFloat) * net.conv.weight.to(at::kFloat).t()).sum(0));
  const int64_t keys = net.num_key_heads * net.key_dim;
  const auto of_value_heads = [&](const at::Tensor& rows) {
    return rows.repeat_interleave(net.num_value_heads / net.num_key_heads, 0);
  };
  const auto heads = [&](int64_t first, int64_t size, int64_t dim) {
    return convolved.narrow(0, first, size).view({-1, dim});
  };
  const double length = 1 / std::sqrt(static_cast<double>(net.key_dim));
  const at::Tensor q = of_value_heads(kernels::unit_rows(heads(0, keys, net.key_dim), length).rows),
                   k = of_value_heads(kernels::unit_rows(heads(keys, keys, net.key_dim), 1).rows),
                   v = heads(2 * keys, convolved.size(0) - 2 * keys, net.value_dim);
  const Gates gates = gates_of(net.a_log.weight, net.dt_bias.weight, a, b);
  const auto per_head = [](const at::Tensor& gate) { return gate.view({-1, 1, 1}); };
  state.memory = state.memory * per_head(gates.g.exp());
  const at::Tensor corrected =
      (v.unsqueeze(1) - at::bmm(k.unsqueeze(1), state.memory)).mul_(per_head(gates.beta));
  state.memory.baddbmm_(k.unsqueeze(2), corrected);
  const at::Tensor read = at::bmm(q.unsqueeze(1), state.memory).view({1, -1});
  return gated_norm(net, read.to(x.scalar_type()), z);
}

}  // namespace sftrun::layers
