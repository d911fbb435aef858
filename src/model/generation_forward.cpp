#include "generation_forward.h"

#include <ATen/ATen.h>

namespace sftrun::model {

at::Tensor GenerationForward::run(GenerationInputs& inputs,
                                  std::span<const std::unique_ptr<layers::LayerCache>> caches) {
  using Pass = layers::DequantPrefetcher::Pass;
  decoder_.joints().prepare(inputs.has_prefill() ? Pass::kForward : Pass::kDecoding, hooks());
  layers::BatchContext context = inputs.context();
  at::Tensor hidden = input(inputs.tokens(decoder_.options().device), context);
  const layers::GenerationPass pass = inputs.pass(context, caches);
  for (size_t l = 0; l < decoder_.layers().size(); ++l) {
    const int64_t unit = decoder_.layer_unit(static_cast<int64_t>(l));
    if (!decoder_.held_units().contains(unit)) continue;
    with_unit(unit, [&] { hidden = layers::generate_layer(decoder_.layers()[l], hidden, pass); });
  }
  if (has_head()) return hidden;
  ranks_->links()->send_hidden(hidden.contiguous());
  return {};
}

/// Embeds the tokens, or receives the hidden states of the stage before.
at::Tensor GenerationForward::input(const at::Tensor& tokens, layers::BatchContext& context) {
  const DecoderOptions& options = decoder_.options();
  at::Tensor hidden;
  if (decoder_.held_units().contains(decoder_.embedding_unit())) {
    with_unit(decoder_.embedding_unit(), [&] {
      hidden = decoder_.embed(tokens);
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
