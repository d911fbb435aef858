#include "sftrun/model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

/// One block of the forward pass, kept for its backward.
struct BlockRun {
  at::Tensor input, output;  ///< output is undefined when the block is recomputed
};

}  // namespace

at::Tensor Decoder::embed(const at::Tensor& tokens) const {
  return embedding_.index_select(0, tokens);
}

kernels::AttentionShape Decoder::attention_shape() const {
  return {arch_.num_heads, arch_.num_kv_heads, arch_.head_dim,
          1.0 / std::sqrt(static_cast<double>(arch_.head_dim))};
}

// norm, attention, residual, norm, feed-forward, residual.
at::Tensor Decoder::block(Layer& layer, const at::Tensor& x,
                          const kernels::BatchContext& batch) const {
  const at::Tensor attention_input = ops_.rms_norm(x, layer.input_norm);
  auto qkv = ops_.linears(attention_input, {&layer.q, &layer.k, &layer.v}, batch);
  const at::Tensor attended = ops_.attention(std::move(qkv[0]), std::move(qkv[1]),
                                             std::move(qkv[2]), batch, attention_shape());
  qkv.clear();
  at::Tensor middle = ops_.linears(attended, {&layer.o}, batch)[0].add_(x);

  const at::Tensor feed_forward_input = ops_.rms_norm(middle, layer.post_attention_norm);
  const auto gate_up = ops_.linears(feed_forward_input, {&layer.gate, &layer.up}, batch);
  return ops_.linears(ops_.swiglu(gate_up[0], gate_up[1]), {&layer.down}, batch)[0].add_(middle);
}

bool Decoder::trains_below(int64_t group) const {
  return !store_.empty() && first_trained_group_ < group;
}

double Decoder::forward_backward(const PackedBatch& batch, double grad_scale,
                                 const GroupDone& done) {
  const int64_t num_layers = arch_.num_layers, head_group = num_layers + 1;
  if (batch.num_tokens() == 0) {
    for (int64_t group = head_group; group >= 0; --group) done(group);
    return 0;
  }
  std::vector<BlockRun> runs(static_cast<size_t>(num_layers));
  at::Tensor hidden;
  {
    const at::NoGradGuard no_grad;
    hidden = embed(batch.tokens);
  }
  for (int64_t l = 0; l < num_layers; ++l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    BlockRun& run = runs[static_cast<size_t>(l)];
    const bool in_graph = trains_below(l + 2);
    if (in_graph) {
      run.input = hidden.detach();
      if (trains_below(l + 1)) run.input.requires_grad_();
    }
    const at::AutoGradMode grad_mode(in_graph && !options_.gradient_checkpointing);
    at::Tensor output = block(layer, in_graph ? run.input : hidden, batch.context);
    if (in_graph && !options_.gradient_checkpointing) run.output = output;
    hidden = output.detach();
  }

  at::Tensor grad;
  const double loss_sum = head_forward_backward(batch, hidden, grad_scale, grad);
  hidden.reset();
  done(head_group);
  for (int64_t l = num_layers - 1; l >= 0; --l) {
    BlockRun run = std::move(runs[static_cast<size_t>(l)]);
    if (run.input.defined()) {
      if (!run.output.defined())
        run.output = block(layers_[static_cast<size_t>(l)], run.input, batch.context);
      torch::autograd::backward({run.output}, {grad});
      grad = run.input.requires_grad() ? run.input.grad() : at::Tensor();
    }
    done(l + 1);
  }
  if (embedding_parameter_) {
    const at::NoGradGuard no_grad;
    embedding_parameter_->grad.index_add_(0, batch.tokens, grad.to(at::kFloat));
  }
  done(0);
  return loss_sum;
}

// Only rows that carry a label reach the final norm and the head.
double Decoder::head_forward_backward(const PackedBatch& batch, const at::Tensor& hidden,
                                      double grad_scale, at::Tensor& grad) {
  const bool needs_grad = trains_below(arch_.num_layers + 1);
  const bool plain = &ops_ == &kernels::plain_ops();
  const auto loss_of = plain ? kernels::head_loss_plain : kernels::head_loss;
  at::Tensor input = hidden.index_select(0, batch.label_rows).requires_grad_(needs_grad);
  at::Tensor normed;
  {
    const at::AutoGradMode grad_mode(!store_.empty());
    normed = ops_.rms_norm(input, final_norm_);
  }
  const kernels::HeadLoss result =
      loss_of(normed.detach(), head_, batch.labels, grad_scale, !store_.empty());
  if (normed.requires_grad()) torch::autograd::backward({normed}, {result.grad_hidden});
  if (needs_grad) {
    grad = at::zeros_like(hidden);
    if (input.grad().defined()) grad.index_copy_(0, batch.label_rows, input.grad());
  }
  return result.loss_sum;
}

at::Tensor Decoder::hidden_without_grad(const PackedBatch& batch) {
  at::Tensor hidden = embed(batch.tokens);
  for (Layer& layer : layers_) hidden = block(layer, hidden, batch.context);
  return hidden;
}

double Decoder::loss(const PackedBatch& batch) {
  if (batch.num_tokens() == 0) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor rows = hidden_without_grad(batch).index_select(0, batch.label_rows);
  return kernels::head_loss(ops_.rms_norm(rows, final_norm_), head_, batch.labels, 1.0,
                            /*with_grad=*/false)
      .loss_sum;
}

at::Tensor Decoder::token_losses(const PackedBatch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows =
      ops_.rms_norm(hidden_without_grad(batch).index_select(0, batch.label_rows), final_norm_);
  constexpr int64_t kRows = 256;
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < rows.size(0); first += kRows) {
    const int64_t count = std::min(kRows, rows.size(0) - first);
    parts.push_back(
        kernels::token_losses(kernels::matmul_nt(rows.narrow(0, first, count), head_.weight),
                              batch.labels.narrow(0, first, count)));
  }
  return parts.empty() ? at::empty({0}, at::kFloat) : at::cat(parts);
}

at::Tensor Decoder::logits(const PackedBatch& batch, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor normed =
      ops_.rms_norm(hidden_without_grad(batch).index_select(0, rows), final_norm_);
  return kernels::matmul_nt(normed, head_.weight);
}

}  // namespace sftrun::model
