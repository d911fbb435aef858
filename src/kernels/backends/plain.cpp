#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "sftrun/kernels/backend.h"

/// Plain operations with the reference's numerics: transformers' modeling_llama.py and peft's
/// lora/layer.py, line by line.
namespace sftrun::kernels {
namespace {

/// What products read: trained parameters take part in autograd through their fp32 master.
at::Tensor value_of(const Parameter* parameter, const at::Tensor& frozen) {
  return parameter ? parameter->master.to(parameter->compute.scalar_type()) : frozen;
}

at::Tensor rms_norm(const at::Tensor& x, const Norm& norm) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normed = wide * at::rsqrt(variance + norm.eps);
  return value_of(norm.parameter, norm.weight) * normed.to(x.scalar_type());
}

at::Tensor lora_update(const at::Tensor& x, const LoraAdapter& lora, const BatchContext& batch) {
  at::Tensor input = x.to(at::kFloat);  // peft casts the input to the adapter's dtype
  if (batch.training && lora.dropout > 0) {
    at::Tensor mask;
    {
      const at::NoGradGuard no_grad;
      mask = dropout(at::ones_like(input), batch, lora.dropout, lora.module_number);
    }
    input = input * mask;
  }
  return at::linear(at::linear(input, lora.a->master), lora.b->master) * lora.scale;
}

std::vector<at::Tensor> linears(const at::Tensor& x, const LinearGroup& group,
                                const BatchContext& batch) {
  std::vector<at::Tensor> outputs;
  for (const Linear* linear : group) {
    std::optional<at::Tensor> bias;
    if (linear->bias.defined()) bias = value_of(linear->bias_parameter, linear->bias);
    at::Tensor y = at::linear(x, value_of(linear->weight_parameter, linear->weight), bias);
    if (linear->lora) y = (y + lora_update(x, *linear->lora, batch)).to(x.scalar_type());
    outputs.push_back(y);
  }
  return outputs;
}

/// transformers' apply_rotary_pos_emb: x cos + rotate_half(x) sin.
at::Tensor rotate(const at::Tensor& x, const BatchContext& batch, int64_t head_dim) {
  const at::Tensor heads = x.view({x.size(0), -1, head_dim});
  const at::Tensor cos = at::cat({batch.cos, batch.cos}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor sin = at::cat({batch.sin, batch.sin}, -1).unsqueeze(1).to(x.scalar_type());
  const at::Tensor low = heads.narrow(-1, 0, head_dim / 2),
                   high = heads.narrow(-1, head_dim / 2, head_dim / 2);
  return heads * cos + at::cat({-high, low}, -1) * sin;
}

at::Tensor attention(at::Tensor q, at::Tensor k, at::Tensor v, const BatchContext& batch,
                     const AttentionShape& shape) {
  const at::Tensor q_rotated = rotate(q, batch, shape.head_dim),
                   k_rotated = rotate(k, batch, shape.head_dim);
  const at::Tensor v_heads = v.view({v.size(0), shape.num_kv_heads, shape.head_dim});
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    const auto document = [&](const at::Tensor& x) {
      return x.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
    };
    const at::Tensor out = at::scaled_dot_product_attention(
        document(q_rotated), document(k_rotated), document(v_heads), std::nullopt, 0.0,
        /*is_causal=*/true, shape.scale, /*enable_gqa=*/true);
    outputs.push_back(
        out.squeeze(0).transpose(0, 1).reshape({length, shape.num_heads * shape.head_dim}));
  }
  return at::cat(outputs, 0);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate) * up;
}

at::Tensor forward(const Layer& l, const at::Tensor& x, const BatchContext& batch,
                   const AttentionShape& shape) {
  const auto qkv = linears(rms_norm(x, l.input_norm), {&l.q, &l.k, &l.v}, batch);
  const at::Tensor attended = attention(qkv[0], qkv[1], qkv[2], batch, shape);
  const at::Tensor middle = x + linears(attended, {&l.o}, batch)[0];
  const auto gate_up = linears(rms_norm(middle, l.post_attention_norm), {&l.gate, &l.up}, batch);
  return middle + linears(swiglu(gate_up[0], gate_up[1]), {&l.down}, batch)[0];
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
                         const AttentionShape& shape, std::unique_ptr<LayerRun>* run) {
  const at::AutoGradMode grad_mode(run != nullptr);
  if (run == nullptr) return forward(layer, x, batch, shape);
  auto kept = std::make_unique<PlainRun>();
  kept->input = x.detach().requires_grad_();
  kept->output = forward(layer, kept->input, batch, shape);
  at::Tensor y = kept->output.detach();
  *run = std::move(kept);
  return y;
}

HeadLoss head_loss(const at::Tensor& input, const Norm& norm, const Linear& head,
                   const at::Tensor& labels, double grad_scale, HeadGrad wanted) {
  constexpr int64_t kRows = 256;
  const at::AutoGradMode grad_mode(wanted != HeadGrad::kNone);
  const at::Tensor rows = input.detach().requires_grad_(wanted == HeadGrad::kInput);
  const at::Tensor normed = rms_norm(rows, norm);
  HeadLoss result;
  at::Tensor d_normed = normed.requires_grad() ? at::empty_like(normed) : at::Tensor();
  for (int64_t first = 0; first < input.size(0); first += kRows) {
    const int64_t count = std::min(kRows, input.size(0) - first);
    const at::Tensor chunk =
        normed.narrow(0, first, count).detach().requires_grad_(d_normed.defined());
    const at::Tensor logits =
        at::linear(chunk, value_of(head.weight_parameter, head.weight)).to(at::kFloat);
    const at::Tensor loss = at::cross_entropy_loss(
        logits, labels.narrow(0, first, count).to(at::kLong), {}, at::Reduction::Sum);
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
