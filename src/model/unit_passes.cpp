#include "unit_passes.h"

#include <ATen/ATen.h>

#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::model {

bool has_backward(Decoder& decoder, const MicroBatchRun& run, int64_t unit) {
  return run.trains && (decoder.trains_at_or_below(unit) || run.options.needs_span_gradients);
}

bool needs_input_gradient(Decoder& decoder, const MicroBatchRun& run, int64_t unit) {
  return run.trains && (decoder.trains_below(unit) || run.options.needs_span_gradients);
}

void embedding_forward(Decoder& decoder, MicroBatchRun& run) {
  run.hidden = run.trains ? decoder.embed_for_training(run.batch)
                          : decoder.embed(run.batch.tokens, run.context.adapters);
  SFTRUN_CHECK(run.batch.spans.empty() || !decoder.per_layer().defined());
  for (const InputSpan& span : run.batch.spans)
    run.hidden.narrow(0, span.first, span.rows.size(0)).copy_(span.rows);
  const bool keeps = has_backward(decoder, run, decoder.embedding_unit());
  decoder.open_shared_state(run.context, run.batch.tokens, run.hidden,
                            keeps ? &run.per_layer : nullptr);
}

void layer_forward(Decoder& decoder, MicroBatchRun& run, int64_t layer,
                   const InputStreams* streams) {
  const auto i = static_cast<size_t>(layer);
  const bool keeps = has_backward(decoder, run, decoder.layer_unit(layer));
  const bool checkpoints = decoder.options().gradient_checkpointing;
  if (keeps && checkpoints) run.inputs.keep(layer, run.hidden, streams);
  run.hidden = decoder.backend().layer_forward(decoder.layers()[i], run.hidden, run.context,
                                               keeps && !checkpoints ? &run.layers[i] : nullptr);
}

void layer_backward(Decoder& decoder, MicroBatchRun& run, int64_t layer,
                    const InputStreams* streams) {
  const auto i = static_cast<size_t>(layer);
  if (run.inputs.has(layer)) {
    decoder.backend().layer_forward(decoder.layers()[i], run.inputs.take(layer, streams),
                                    run.context, &run.layers[i]);
  }
  run.grad = run.layers[i]->backward(run.grad,
                                     needs_input_gradient(decoder, run, decoder.layer_unit(layer)));
  run.layers[i].reset();
}

void embedding_backward(Decoder& decoder, MicroBatchRun& run) {
  layers::Embedding& embedding = decoder.embedding();
  const layers::PerLayerInputs& per_layer = decoder.per_layer();
  if (per_layer.defined()) {
    const at::Tensor d = layers::per_layer_backward(
        per_layer, std::move(run.per_layer), run.batch.tokens,
        run.context.shared_state->d_per_layer, run.context, embedding.trains());
    if (d.defined()) run.grad = run.grad + d;
  }
  for (const InputSpan& span : run.batch.spans) {
    const at::Tensor of_span = run.grad.narrow(0, span.first, span.rows.size(0));
    if (run.options.needs_span_gradients) run.span_gradients.push_back(of_span.clone());
    of_span.zero_();  // the tokens in their place have no part in the result
  }
  if (embedding.trains()) layers::embedding_backward(embedding, run.batch.tokens, run.grad);
}

}  // namespace sftrun::model
