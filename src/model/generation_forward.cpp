#include "generation_forward.h"

#include <ATen/ATen.h>

namespace sftrun::model {

namespace {

const PackedImages* images_of(const GenerationInputs& inputs) {
  if (!inputs.has_prefill() || !inputs.prefill.packed.images) return nullptr;
  return &*inputs.prefill.packed.images;
}

/// The rows of the pass that stand for images: prompts follow the tokens of other sequences.
/// @pre there are images
at::Tensor image_rows(const GenerationInputs& inputs) {
  return images_of(inputs)->places.rows + inputs.decode.count();
}

/// Of the prompts in the pass.
const std::vector<PackedFeatures>& features_of(const GenerationInputs& inputs) {
  static const std::vector<PackedFeatures> kNone;
  return inputs.has_prefill() ? inputs.prefill.packed.features : kNone;
}

}  // namespace

at::Tensor GenerationForward::run(GenerationInputs& inputs,
                                  std::span<const std::unique_ptr<layers::LayerCache>> caches) {
  using Pass = layers::DequantPrefetcher::Pass;
  decoder_.joints().prepare(inputs.has_prefill() ? Pass::kForward : Pass::kDecoding, hooks());
  layers::BatchContext context = inputs.context();
  at::Tensor hidden = input(inputs, context);
  const layers::GenerationPass pass = inputs.pass(context, caches);
  for (size_t l = 0; l < decoder_.layers().size(); ++l) {
    const int64_t unit = decoder_.layer_unit(static_cast<int64_t>(l));
    if (!decoder_.held_units().contains(unit)) continue;
    with_unit(unit, [&] { hidden = layers::generate_layer(decoder_.layers()[l], hidden, pass); });
    if (tower_ && l < tower_->deepstack_features().size())
      hidden = hidden.index_add(0, image_rows(inputs), tower_->deepstack_features()[l]);
  }
  tower_.reset();
  if (has_head()) return hidden;
  ranks_->links()->send_hidden(hidden.contiguous());
  return {};
}

void GenerationForward::run_tower(const PackedImages* images) {
  if (images != nullptr)
    tower_ = std::make_unique<layers::TowerPass>(decoder_.tower(), images->input, images->layout);
  for (int64_t unit = 0; unit < decoder_.num_tower_units(); ++unit)
    with_unit(unit, [&] {
      if (tower_) tower_->forward(unit, layers::TowerKeeps::kNothing);
    });
}

std::vector<at::Tensor> GenerationForward::project(const std::vector<PackedFeatures>& features) {
  std::vector<at::Tensor> rows;
  for (int64_t unit = decoder_.num_tower_units(); unit < decoder_.embedding_unit(); ++unit)
    with_unit(unit, [&] {
      const int64_t projector = unit - decoder_.num_tower_units();
      for (const PackedFeatures& of : features) {
        if (of.projector != projector) continue;
        layers::ProjectorPass pass(decoder_.projectors()[static_cast<size_t>(projector)],
                                   of.values);
        rows.push_back(pass.forward(layers::TowerKeeps::kNothing));
      }
    });
  return rows;
}

/// Embeds the tokens, or receives the hidden states of the stage before.
at::Tensor GenerationForward::input(const GenerationInputs& inputs, layers::BatchContext& context) {
  const DecoderOptions& options = decoder_.options();
  const at::Tensor tokens = inputs.tokens(options.device);
  at::Tensor hidden;
  if (decoder_.held_units().contains(decoder_.embedding_unit())) {
    run_tower(images_of(inputs));
    const std::vector<PackedFeatures>& features = features_of(inputs);
    const std::vector<at::Tensor> projected = project(features);
    with_unit(decoder_.embedding_unit(), [&] {
      hidden = decoder_.embed(tokens);
      for (size_t i = 0; i < features.size(); ++i)
        put_rows(hidden, features[i].places.rows + inputs.decode.count(), projected[i]);
      if (tower_) put_rows(hidden, image_rows(inputs), tower_->features());
      decoder_.open_shared_state(context, tokens, hidden);
    });
  } else {
    hidden = at::empty({tokens.size(0), decoder_.arch().hidden_size},
                       at::TensorOptions().dtype(options.dtype).device(options.device));
    ranks_->links()->receive_hidden(hidden);
  }
  return hidden;
}

void GenerationForward::run_nothing() {
  const layers::UnitRange held = decoder_.held_units();
  for (int64_t unit = held.first; unit < held.end; ++unit) with_unit(unit, [] {});
}

}  // namespace sftrun::model
