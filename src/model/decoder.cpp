#include "sftrun/model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"
#include "sftrun/kernels/dora.h"
#include "sftrun/kernels/noise.h"

namespace sftrun::model {

at::Tensor Decoder::embed(const at::Tensor& tokens) const {
  return kernels::embedding_forward(embedding_, tokens, options_.dtype);
}

at::Tensor Decoder::embed_for_training(const PackedBatch& batch) const {
  at::Tensor hidden = embed(batch.tokens);
  if (options_.neftune_noise_alpha == 0 || !batch.context.training) return hidden;
  // transformers adds the noise to the embedding module's output. Only Granite scales after that.
  const bool is_scaled = arch_.family.starts_with("granite");
  kernels::add_embedding_noise_(hidden, batch.context, options_.neftune_noise_alpha,
                                is_scaled ? embedding_.scale : 1);
  return hidden;
}

double Decoder::rounded(double scale) const {
  return at::scalar_tensor(scale, at::TensorOptions().dtype(options_.dtype)).item<double>();
}

void Decoder::open_exchange(kernels::BatchContext& context, const at::Tensor& tokens,
                            const at::Tensor& hidden, kernels::PerLayerRun* keep) const {
  if (!shares_keys_ && !per_layer_.defined()) return;
  context.exchange = std::make_shared<kernels::LayerExchange>();
  context.exchange->keys.resize(layers_.size());
  if (!per_layer_.defined()) return;
  context.exchange->per_layer =
      kernels::per_layer_forward(per_layer_, tokens, hidden, context, keep);
  if (keep) context.exchange->d_per_layer = at::zeros_like(context.exchange->per_layer, at::kFloat);
}

std::vector<kernels::Linear*> Decoder::linears() {
  std::vector<kernels::Linear*> all;
  if (per_layer_.defined()) all.push_back(&per_layer_.projection);
  for (Layer& layer : layers_) {
    for (kernels::Linear* linear : layer.linears()) all.push_back(linear);
  }
  return all;
}

std::vector<kernels::Linear*> Decoder::adapted_linears() {
  std::vector<kernels::Linear*> adapted = linears();
  adapted.push_back(&head_.linear);
  std::erase_if(adapted, [](const kernels::Linear* linear) { return !linear->lora; });
  return adapted;
}

void Decoder::settle_adapters() {
  for (kernels::Linear* linear : adapted_linears()) {
    if (linear->lora->magnitude) linear->lora->lengths = kernels::row_lengths(*linear);
  }
  if (embedding_.lora && embedding_.lora->magnitude)
    embedding_.lora->lengths = kernels::column_lengths(embedding_);
}

void Decoder::count_router_choices(kernels::BatchContext& context) {
  if (!context.exchange) context.exchange = std::make_shared<kernels::LayerExchange>();
  context.exchange->balance.counts = true;
}

bool Decoder::trains_below(int64_t group) const {
  return !store_.empty() && first_trained_group_ < group;
}

at::Tensor Decoder::no_loss() const {
  return at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(options_.device));
}

void Decoder::refresh_joints() {
  if (joints_version_ == store_.version()) return;
  joint_adapters_.refresh();
  joints_version_ = store_.version();
}

void Decoder::prepare_joints(kernels::UnpackAhead::Pass pass) {
  refresh_joints();
  if (unpacking_) unpacking_->begin(pass);
}

void Decoder::join_unpacking() {
  if (unpacking_) unpacking_->join();
}

void Decoder::forget_unpacking() {
  if (unpacking_) unpacking_->forget();
}

at::Tensor Decoder::forward_backward(const PackedBatch& batch, double grad_scale,
                                     const GroupDone& done, AuxLoss* aux) {
  const int64_t num_layers = arch_.num_layers, head_group = num_layers + 1;
  if (batch.num_tokens() == 0) {
    for (int64_t group = head_group; group >= 0; --group) done(group);
    if (aux) aux->value = no_loss();
    return no_loss();
  }
  const at::NoGradGuard no_grad;
  // Per layer with gradients: its saved state, or with gradient checkpointing its input.
  std::vector<std::unique_ptr<kernels::LayerRun>> runs(static_cast<size_t>(num_layers));
  std::vector<at::Tensor> inputs(static_cast<size_t>(num_layers));
  prepare_joints(kernels::UnpackAhead::Pass::kTraining);
  at::Tensor hidden = embed_for_training(batch);
  kernels::BatchContext context = batch.context;
  kernels::PerLayerRun per_layer;
  open_exchange(context, batch.tokens, hidden, trains_below(1) ? &per_layer : nullptr);
  if (aux) count_router_choices(context);
  for (int64_t l = 0; l < num_layers; ++l) {
    const auto i = static_cast<size_t>(l);
    const bool keeps = trains_below(l + 2) && !options_.gradient_checkpointing;
    if (trains_below(l + 2) && options_.gradient_checkpointing) inputs[i] = hidden;
    hidden = backend_.layer_forward(layers_[i], hidden, context, keeps ? &runs[i] : nullptr);
  }
  if (aux) aux->value = kernels::close_balance(context.exchange->balance, aux->grad_scale);

  at::Tensor grad;
  const at::Tensor loss_sum = head_forward_backward(batch, hidden, grad_scale, grad);
  hidden.reset();
  done(head_group);
  for (int64_t l = num_layers - 1; l >= 0; --l) {
    const auto i = static_cast<size_t>(l);
    if (inputs[i].defined()) {
      backend_.layer_forward(layers_[i], inputs[i], context, &runs[i]);
      inputs[i].reset();
    }
    if (runs[i]) {
      grad = runs[i]->backward(grad, trains_below(l + 1));
      runs[i].reset();
    }
    done(l + 1);
  }
  if (per_layer_.defined() && trains_below(1)) {
    const at::Tensor d =
        kernels::per_layer_backward(per_layer_, std::move(per_layer), batch.tokens,
                                    context.exchange->d_per_layer, context, embedding_.trains());
    if (d.defined()) grad = grad + d;
  }
  if (embedding_.trains()) kernels::embedding_backward(embedding_, batch.tokens, grad);
  done(0);
  return loss_sum;
}

kernels::BatchContext Decoder::head_rows(const PackedBatch& batch) const {
  const auto& lora = head_.linear.lora;
  if (!lora || lora->dropout == 0) return {};
  return kernels::dropout_rows(batch.context, batch.label_rows);
}

// Only rows that have a label reach the final norm and the head.
at::Tensor Decoder::head_forward_backward(const PackedBatch& batch, const at::Tensor& hidden,
                                          double grad_scale, at::Tensor& grad) {
  using kernels::HeadGrad;
  const HeadGrad wanted = trains_below(arch_.num_layers + 1) ? HeadGrad::kInput
                          : !store_.empty()                  ? HeadGrad::kParameters
                                                             : HeadGrad::kNone;
  const kernels::HeadLoss result =
      backend_.head_loss(hidden.index_select(0, batch.label_rows), head_, batch.labels,
                         {grad_scale, batch.grad_factor}, wanted, head_rows(batch));
  if (wanted == HeadGrad::kInput) {
    const int64_t spare = layers_.back().joint_down.spare();
    grad = at::zeros({hidden.size(0), hidden.size(1) + spare}, hidden.options())
               .narrow(1, 0, hidden.size(1));
    grad.index_copy_(0, batch.label_rows, result.grad_input);
  }
  return result.loss_sum;
}

at::Tensor Decoder::hidden_without_grad(const PackedBatch& batch) {
  prepare_joints();
  at::Tensor hidden = embed(batch.tokens);
  kernels::BatchContext context = batch.context;
  open_exchange(context, batch.tokens, hidden);
  for (const Layer& layer : layers_)
    hidden = backend_.layer_forward(layer, hidden, context, nullptr);
  return hidden;
}

at::Tensor Decoder::loss(const PackedBatch& batch) {
  if (batch.num_tokens() == 0) return no_loss();
  const at::NoGradGuard no_grad;
  const at::Tensor rows = hidden_without_grad(batch).index_select(0, batch.label_rows);
  return backend_.head_loss(rows, head_, batch.labels, 1.0, kernels::HeadGrad::kNone, {}).loss_sum;
}

at::Tensor Decoder::token_losses(const PackedBatch& batch) {
  const at::NoGradGuard no_grad;
  return kernels::label_losses(head_, hidden_without_grad(batch).index_select(0, batch.label_rows),
                               batch.labels);
}

at::Tensor Decoder::logits(const PackedBatch& batch, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  return kernels::logits_of(head_, hidden_without_grad(batch).index_select(0, rows));
}

}  // namespace sftrun::model
