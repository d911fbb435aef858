#include "sftrun/model/decoder.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"
#include "sftrun/kernels/noise.h"
#include "sftrun/layers/dora.h"

namespace sftrun::model {

at::Tensor Decoder::embed(const at::Tensor& tokens, bool adapters) const {
  return layers::embedding_forward(embedding_, tokens, options_.dtype, adapters);
}

at::Tensor Decoder::embed_for_training(const PackedBatch& batch) const {
  at::Tensor hidden = embed(batch.tokens);
  if (options_.neftune_noise_alpha == 0 || !batch.context.training) return hidden;
  kernels::add_embedding_noise_(hidden, batch.context, options_.neftune_noise_alpha,
                                arch_.scales_embedding_noise ? embedding_.scale : 1);
  return hidden;
}

double Decoder::rounded(double scale) const {
  return at::scalar_tensor(scale, at::TensorOptions().dtype(options_.dtype)).item<double>();
}

void Decoder::open_shared_state(layers::BatchContext& context, const at::Tensor& tokens,
                                const at::Tensor& hidden, layers::PerLayerRun* keep) const {
  if (!shares_keys_ && !per_layer_.defined()) return;
  context.shared_state = std::make_shared<layers::SharedLayerState>();
  context.shared_state->keys.resize(layers_.size());
  if (!per_layer_.defined()) return;
  context.shared_state->per_layer =
      layers::per_layer_forward(per_layer_, tokens, hidden, context, keep);
  if (keep)
    context.shared_state->d_per_layer = at::zeros_like(context.shared_state->per_layer, at::kFloat);
}

std::vector<layers::Linear*> Decoder::linears() {
  std::vector<layers::Linear*> all;
  if (tower_.is_defined()) {
    for (const layers::TowerMembers& unit : layers::members_of(tower_))
      for (const auto& member : unit.linears) all.push_back(member.linear);
  }
  if (per_layer_.defined()) all.push_back(&per_layer_.projection);
  for (Layer& layer : layers_) {
    for (layers::Linear* linear : layer.linears()) all.push_back(linear);
  }
  return all;
}

std::vector<layers::Linear*> Decoder::adapted_linears() {
  std::vector<layers::Linear*> adapted = linears();
  adapted.push_back(&head_.linear);
  std::erase_if(adapted, [](const layers::Linear* linear) { return !linear->lora; });
  return adapted;
}

void Decoder::freeze_adapters() {
  const auto has_norms = [this](const layers::LoraAdapter& lora) {
    return lora.magnitude != nullptr && held_units().contains(lora.magnitude->unit);
  };
  for (layers::Linear* linear : adapted_linears())
    if (has_norms(*linear->lora)) linear->lora->lengths = layers::row_lengths(*linear);
  if (embedding_.lora && has_norms(*embedding_.lora))
    embedding_.lora->lengths = layers::column_lengths(embedding_);
}

void Decoder::count_router_choices(layers::BatchContext& context) {
  if (!context.shared_state) context.shared_state = std::make_shared<layers::SharedLayerState>();
  context.shared_state->balance.counts = true;
}

}  // namespace sftrun::model
