#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "plain_ops.h"
#include "sftrun/kernels/backend.h"

/// Plain operations with the reference's numerics: transformers' modeling_llama.py (and what other
/// families add to it) and peft's lora/layer.py, line by line.
namespace sftrun::kernels {
namespace {

/// Over the last dimension; x itself where there is no norm.
at::Tensor rms_norm(const at::Tensor& x, const Norm& norm) {
  if (!norm.defined()) return x;
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normed = wide * at::rsqrt(variance + norm.eps);
  const at::Tensor weight = value_of(norm.parameter, norm.weight);
  if (norm.offset == 0) return weight * normed.to(x.scalar_type());
  return (normed * (norm.offset + weight.to(at::kFloat))).to(x.scalar_type());
}

/// Of each head, or of all heads together, whichever the norm is for.
at::Tensor norm_heads(const at::Tensor& x, const Norm& norm) {
  return norm.defined() ? rms_norm(x.view({-1, norm.weight.numel()}), norm).view_as(x) : x;
}

/// transformers' apply_rotary_pos_emb: x cos + rotate_half(x) sin, of each head's first channels.
at::Tensor rotate(const at::Tensor& x, const Layer& layer, const BatchContext& batch) {
  const int64_t head_dim = layer.attention.head_dim;
  const at::Tensor heads = x.view({x.size(0), -1, head_dim});
  if (layer.rope < 0) return heads;
  const RopeAngles& angles = batch.ropes[static_cast<size_t>(layer.rope)];
  const int64_t half = angles.cos.size(1);
  const at::Tensor cos = at::cat({angles.cos, angles.cos}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor sin = at::cat({angles.sin, angles.sin}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor turning = heads.narrow(-1, 0, 2 * half);
  const at::Tensor low = turning.narrow(-1, 0, half), high = turning.narrow(-1, half, half);
  const at::Tensor turned = turning * cos + at::cat({-high, low}, -1) * sin;
  if (2 * half == head_dim) return turned;
  return at::cat({turned, heads.narrow(-1, 2 * half, head_dim - 2 * half)}, -1);
}

/// One document: q [heads, S, head_dim], k and v [kv_heads, S, head_dim]. As transformers by
/// default where that has words for it, else as its eager_attention_forward.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionShape& shape) {
  if (shape.softcap == 0 && shape.window == 0) {
    return at::scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0),
                                            std::nullopt, 0.0, /*is_causal=*/true, shape.scale,
                                            /*enable_gqa=*/true)
        .squeeze(0);
  }
  const int64_t length = q.size(1), group = shape.num_heads / shape.num_kv_heads;
  at::Tensor scores = at::matmul(q, k.repeat_interleave(group, 0).transpose(1, 2)) * shape.scale;
  if (shape.softcap > 0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
  const at::Tensor all = at::ones({length, length}, q.options().dtype(at::kBool));
  at::Tensor hidden = all.triu(1);
  if (shape.window > 0) hidden = hidden.logical_or(all.tril(-shape.window));
  const at::Tensor weights =
      at::softmax(scores.masked_fill(hidden, -INFINITY), -1, at::kFloat).to(q.scalar_type());
  return at::matmul(weights, v.repeat_interleave(group, 0));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Layer& layer, const BatchContext& batch) {
  const AttentionShape& shape = layer.attention;
  const at::Tensor q_rotated = rotate(q, layer, batch), k_rotated = rotate(k, layer, batch);
  const at::Tensor v_heads = v.view({v.size(0), shape.num_kv_heads, shape.head_dim});
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    const auto document = [&](const at::Tensor& x) {
      return x.narrow(0, begin, length).transpose(0, 1);
    };
    const at::Tensor out =
        attend(document(q_rotated), document(k_rotated), document(v_heads), shape);
    outputs.push_back(out.transpose(0, 1).reshape({length, shape.num_heads * shape.head_dim}));
  }
  return at::cat(outputs, 0);
}

at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up) {
  return (activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

at::Tensor attention_half(const Layer& l, const at::Tensor& x, const BatchContext& batch) {
  const at::Tensor in = rms_norm(x, l.attention_in);
  std::vector<at::Tensor> qkv;
  if (l.fuses_qkv()) {
    const int64_t queries = l.attention.num_heads * l.attention.head_dim,
                  keys = l.attention.num_kv_heads * l.attention.head_dim;
    qkv = linears(in, {&l.qkv}, batch)[0].split_with_sizes({queries, keys, keys}, 1);
    for (at::Tensor& part : qkv) part = part.contiguous();
  } else {
    qkv = linears(in, {&l.q, &l.k, &l.v}, batch);
  }
  const at::Tensor attended =
      attention(norm_heads(qkv[0], l.q_norm), norm_heads(qkv[1], l.k_norm), qkv[2], l, batch);
  return rms_norm(linears(attended, {&l.o}, batch)[0], l.attention_out);
}

/// The matrix of one expert with its update, as peft's parametrisation forms it.
at::Tensor expert_weight(const ExpertMatrix& matrix, int64_t expert) {
  at::Tensor weight = value_of(matrix.parameter, matrix.weight).select(0, expert);
  if (!matrix.lora) return weight;
  const at::Tensor update = at::matmul(matrix.lora->b->master.select(0, expert),
                                       matrix.lora->a->master.select(0, expert));
  return weight + (update * matrix.lora->scale).to(weight.scalar_type());
}

/// transformers' experts, one after the other (modeling_mixtral.py, MixtralExperts).
at::Tensor mixture_of(const Layer& l, const at::Tensor& x, const BatchContext& batch) {
  const Mixture& m = l.mixture;
  const at::Tensor logits = linears(x, {&m.router}, batch)[0];
  const at::Tensor probabilities = at::softmax(logits, -1, at::kFloat);
  auto [weights, chosen] = at::topk(probabilities, m.top_k, -1);
  if (m.normalise) weights = weights / weights.sum(-1, /*keepdim=*/true);
  at::Tensor y = at::zeros_like(x);
  for (int64_t expert = 0; expert < logits.size(1); ++expert) {
    const at::Tensor places = at::nonzero(chosen == expert);
    if (places.size(0) == 0) continue;
    const at::Tensor tokens = places.select(1, 0), place = places.select(1, 1);
    const at::Tensor rows = x.index_select(0, tokens);
    const auto gate_up = at::linear(rows, expert_weight(m.gate_up, expert)).chunk(2, -1);
    const at::Tensor h = gated(l.activation, gate_up[0], gate_up[1]);
    const at::Tensor answers = at::linear(h, expert_weight(m.down, expert));
    const at::Tensor weight = at::index(weights, {tokens, place}).unsqueeze(-1);
    y = y.index_add(0, tokens, (answers * weight).to(x.scalar_type()));
  }
  return y;
}

at::Tensor feed_forward_half(const Layer& l, const at::Tensor& x, const BatchContext& batch) {
  const at::Tensor in = rms_norm(x, l.feed_forward_in);
  if (l.mixture.defined()) return rms_norm(mixture_of(l, in, batch), l.feed_forward_out);
  const auto gate_up = l.fuses_gate_up() ? linears(in, {&l.gate_up}, batch)[0].chunk(2, 1)
                                         : linears(in, {&l.gate, &l.up}, batch);
  const at::Tensor h = gated(l.activation, gate_up[0], gate_up[1]);
  return rms_norm(linears(h, {&l.down}, batch)[0], l.feed_forward_out);
}

at::Tensor forward(const Layer& l, const at::Tensor& x, const BatchContext& batch) {
  const auto scaled = [&](const at::Tensor& y) {
    return l.residual_scale == 1 ? y : y * l.residual_scale;
  };
  const at::Tensor middle = x + scaled(attention_half(l, x, batch));
  return middle + scaled(feed_forward_half(l, middle, batch));
}

class PlainRun final : public LayerRun {
 public:
  at::Tensor input, output;
  at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) override {
    if (output.requires_grad()) torch::autograd::backward({output}, {grad});
    return needs_input_grad ? input.grad() : at::Tensor();
  }
};

at::Tensor layer_forward(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                         std::unique_ptr<LayerRun>* run) {
  const at::AutoGradMode grad_mode(run != nullptr);
  if (run == nullptr) return forward(layer, x, batch);
  auto kept = std::make_unique<PlainRun>();
  kept->input = x.detach().requires_grad_();
  kept->output = forward(layer, kept->input, batch);
  at::Tensor y = kept->output.detach();
  *run = std::move(kept);
  return y;
}

HeadLoss head_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                   double grad_scale, HeadGrad wanted) {
  constexpr int64_t kRows = 256;
  const at::AutoGradMode grad_mode(wanted != HeadGrad::kNone);
  const at::Tensor rows = input.detach().requires_grad_(wanted == HeadGrad::kInput);
  const at::Tensor normed = rms_norm(rows, head.norm);
  HeadLoss result;
  at::Tensor d_normed = normed.requires_grad() ? at::empty_like(normed) : at::Tensor();
  for (int64_t first = 0; first < input.size(0); first += kRows) {
    const int64_t count = std::min(kRows, input.size(0) - first);
    const at::Tensor chunk =
        normed.narrow(0, first, count).detach().requires_grad_(d_normed.defined());
    const Linear& linear = head.linear;
    at::Tensor logits = at::linear(chunk, value_of(linear.weight_parameter, linear.weight));
    if (head.logit_scale != 1) logits = logits * head.logit_scale;
    if (head.softcap > 0) logits = at::tanh(logits / head.softcap) * head.softcap;
    const at::Tensor loss =
        at::cross_entropy_loss(logits.to(at::kFloat), labels.narrow(0, first, count).to(at::kLong),
                               {}, at::Reduction::Sum);
    result.loss_sum += loss.item<double>();
    if (!loss.requires_grad()) continue;
    torch::autograd::backward({loss}, {at::full_like(loss, grad_scale)});
    if (d_normed.defined()) d_normed.narrow(0, first, count).copy_(chunk.grad());
  }
  if (d_normed.defined()) torch::autograd::backward({normed}, {d_normed});
  if (wanted == HeadGrad::kInput) result.grad_input = rows.grad();
  return result;
}

}  // namespace

const Backend& plain_backend() {
  static const Backend backend{"plain", layer_forward, head_loss};
  return backend;
}

}  // namespace sftrun::kernels
