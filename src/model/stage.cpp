#include "sftrun/model/stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/model/unit_use.h"

namespace sftrun::model {

using layers::UnitPass;

Stage::Stage(Decoder& decoder, layers::UnitHooks* hooks) : Stage(decoder, hooks, nullptr) {}

Stage::Stage(Decoder& decoder, layers::UnitHooks* hooks, layers::StageLinks* links)
    : decoder_(decoder), hooks_(hooks), links_(links), units_(decoder.held_units()) {
  const DecoderOptions& options = decoder.options();
  if (options.gradient_checkpointing && options.inputs_on_host && options.device.is_cuda())
    input_streams_ = std::make_shared<InputStreams>(options.device);
  SFTRUN_CHECK(units_.first < units_.end && (links != nullptr || has_all_units()));
  if (has_all_units() || !decoder.shares_state_between_layers()) return;
  throw ConfigError(
      "the layers of this model share keys or per-layer inputs, so they cannot be divided into "
      "stages",
      {}, "use a strategy without pipeline parallelism");
}

template <typename Body>
void Stage::with_unit(int64_t unit, UnitPass pass, Body&& body) const {
  use_unit(decoder_, hooks_, unit, pass, body);
}

template <typename Body>
void Stage::for_runs(MicroBatchRuns runs, int64_t unit, UnitPass pass, Body&& body) const {
  with_unit(unit, pass, [&] {
    for (MicroBatchRun* run : runs)
      if (!run->is_empty()) body(*run);
  });
}

void Stage::gradients_ready(const MicroBatchRun& run, int64_t unit) const {
  if (hooks_ != nullptr && run.options.completes_gradients) hooks_->gradients_ready(unit);
}

void Stage::report_gradients() const {
  if (hooks_ == nullptr) return;
  for (int64_t unit = units_.end - 1; unit >= units_.first; --unit) hooks_->gradients_ready(unit);
}

at::Tensor Stage::no_loss() const {
  return at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(decoder_.options().device));
}

bool Stage::has_backward(const MicroBatchRun& run, int64_t unit) const {
  return run.trains && (decoder_.trains_at_or_below(unit) || run.options.needs_span_gradients);
}

bool Stage::needs_input_gradient(const MicroBatchRun& run, int64_t unit) const {
  return run.trains && (decoder_.trains_below(unit) || run.options.needs_span_gradients);
}

at::Tensor Stage::new_rows(const MicroBatchRun& run, int64_t spare) const {
  const DecoderOptions& options = decoder_.options();
  const int64_t width = decoder_.arch().hidden_size;
  return at::zeros({run.batch.num_tokens(), width + spare},
                   at::TensorOptions().dtype(options.dtype).device(options.device))
      .narrow(1, 0, width);
}

void Stage::receive_hidden(MicroBatchRun& run) const {
  run.hidden = new_rows(run, 0);
  links_->receive_hidden(run.hidden);
}

void Stage::send_hidden(MicroBatchRun& run) const {
  links_->send_hidden(std::exchange(run.hidden, {}).contiguous());
}

void Stage::receive_gradient(MicroBatchRun& run) const {
  const at::Tensor grad = new_rows(run, 0);
  links_->receive_gradient(grad);
  const int64_t last = units_.end - 1 - decoder_.layer_unit(0);  // -1: this stage has no layer
  const int64_t spare =
      last < 0 ? 0 : decoder_.layers()[static_cast<size_t>(last)].feed_forward.joint_down.spare();
  run.grad = spare == 0 ? grad : new_rows(run, spare).copy_(grad);
}

void Stage::send_gradient(MicroBatchRun& run) const {
  links_->send_gradient(std::exchange(run.grad, {}).contiguous());
}

void Stage::embed(MicroBatchRun& run) const {
  run.hidden = run.trains ? decoder_.embed_for_training(run.batch)
                          : decoder_.embed(run.batch.tokens, run.context.adapters);
  SFTRUN_CHECK(run.batch.spans.empty() || !decoder_.per_layer().defined());
  for (const InputSpan& span : run.batch.spans)
    run.hidden.narrow(0, span.first, span.rows.size(0)).copy_(span.rows);
  const bool keeps = has_backward(run, decoder_.embedding_unit());
  decoder_.open_shared_state(run.context, run.batch.tokens, run.hidden,
                             keeps ? &run.per_layer : nullptr);
}

void Stage::layer_forward(MicroBatchRun& run, int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  const bool keeps = has_backward(run, decoder_.layer_unit(layer));
  const bool checkpoints = decoder_.options().gradient_checkpointing;
  if (keeps && checkpoints) run.inputs.keep(layer, run.hidden, input_streams_.get());
  run.hidden = decoder_.backend().layer_forward(decoder_.layers()[i], run.hidden, run.context,
                                                keeps && !checkpoints ? &run.layers[i] : nullptr);
}

/// Calls body(layer, unit) for this stage's layers, in the order of the pass.
template <typename Body>
void Stage::for_layers(UnitPass pass, Body&& body) const {
  const int64_t num_layers = decoder_.arch().num_layers;
  for (int64_t i = 0; i < num_layers; ++i) {
    const int64_t layer = pass == UnitPass::kForward ? i : num_layers - 1 - i;
    const int64_t unit = decoder_.layer_unit(layer);
    if (units_.contains(unit)) body(layer, unit);
  }
}

void Stage::forward(MicroBatchRun& run) const {
  MicroBatchRun* const one = &run;
  forward(MicroBatchRuns(&one, 1));
}

void Stage::forward(MicroBatchRuns runs) const {
  SFTRUN_CHECK(runs.size() == 1 || has_all_units());
  const kernels::WorkRange pass(runs[0]->options.activity, Work::kForward);
  const at::NoGradGuard no_grad;
  for (MicroBatchRun* run : runs) {
    run->layers.resize(static_cast<size_t>(decoder_.arch().num_layers));
    if (run->is_empty()) continue;
    using Unpacking = layers::DequantPrefetcher::Pass;
    decoder_.prepare_joints(run->trains ? Unpacking::kTraining : Unpacking::kForward, hooks_);
  }
  if (has_embedding()) {
    for_runs(runs, decoder_.embedding_unit(), UnitPass::kForward,
             [&](MicroBatchRun& run) { embed(run); });
  } else if (!runs[0]->is_empty()) {
    receive_hidden(*runs[0]);
  }
  for (MicroBatchRun* run : runs) {
    SFTRUN_CHECK(run->options.aux == nullptr || has_all_units());  // it counts over all layers
    if (run->options.aux != nullptr && !run->is_empty())
      decoder_.count_router_choices(run->context);
  }
  for_layers(UnitPass::kForward, [&](int64_t layer, int64_t unit) {
    for_runs(runs, unit, UnitPass::kForward,
             [&](MicroBatchRun& run) { layer_forward(run, layer); });
  });
  if (!has_head() && !runs[0]->is_empty()) send_hidden(*runs[0]);
  for (MicroBatchRun* run : runs) close_balance(*run);
}

void Stage::close_balance(MicroBatchRun& run) const {
  AuxLoss* aux = run.options.aux;
  if (aux == nullptr) return;
  aux->value = run.is_empty()
                   ? no_loss()
                   : layers::close_balance(run.context.shared_state->balance, aux->grad_scale);
}

layers::BatchContext Stage::head_rows(const MicroBatchRun& run) const {
  const auto& lora = decoder_.head().linear.lora;
  if (run.trains && lora && lora->dropout > 0)
    return layers::dropout_rows(run.context, run.batch.label_rows);
  layers::BatchContext rows;
  rows.adapters = run.context.adapters;
  return rows;
}

// Only rows that have a label reach the final norm and the head.
at::Tensor Stage::head_loss(MicroBatchRun& run) const {
  using layers::HeadGrad;
  const PackedBatch& batch = run.batch;
  const bool trains_layers = needs_input_gradient(run, decoder_.head_unit());
  const HeadGrad wanted = trains_layers                                  ? HeadGrad::kInput
                          : run.trains && !decoder_.parameters().empty() ? HeadGrad::kParameters
                                                                         : HeadGrad::kNone;
  const at::Tensor hidden = std::exchange(run.hidden, {});
  const kernels::GradScale scale =
      run.trains
          ? kernels::GradScale{run.options.grad_scale, batch.grad_factor, run.options.row_factors}
          : kernels::GradScale{1.0};
  const layers::HeadLoss result =
      decoder_.backend().head_loss(hidden.index_select(0, batch.label_rows), decoder_.head(),
                                   batch.labels, scale, wanted, head_rows(run));
  if (wanted == HeadGrad::kInput) {
    const int64_t spare = decoder_.layers().back().feed_forward.joint_down.spare();
    run.grad = at::zeros({hidden.size(0), hidden.size(1) + spare}, hidden.options())
                   .narrow(1, 0, hidden.size(1));
    run.grad.index_copy_(0, batch.label_rows, result.grad_input);
  }
  return result.loss_sum;
}

at::Tensor Stage::loss(MicroBatchRun& run) const {
  MicroBatchRun* const one = &run;
  return losses(MicroBatchRuns(&one, 1))[0];
}

std::vector<at::Tensor> Stage::losses(MicroBatchRuns runs) const {
  const MicroBatchRun& last = *runs.back();
  const kernels::WorkRange pass(last.options.activity,
                                last.trains ? Work::kBackward : Work::kForward);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums(runs.size());
  const int64_t unit = decoder_.head_unit();
  if (has_head()) {
    with_unit(unit, last.trains ? UnitPass::kBackward : UnitPass::kForward, [&] {
      for (size_t i = 0; i < runs.size(); ++i)
        sums[i] = runs[i]->is_empty() ? no_loss() : head_loss(*runs[i]);
    });
    if (last.trains) gradients_ready(last, unit);
    return sums;
  }
  for (at::Tensor& sum : sums) sum = no_loss();
  return sums;
}

void Stage::layer_backward(MicroBatchRun& run, int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  if (run.inputs.has(layer)) {
    decoder_.backend().layer_forward(decoder_.layers()[i],
                                     run.inputs.take(layer, input_streams_.get()), run.context,
                                     &run.layers[i]);
  }
  run.grad =
      run.layers[i]->backward(run.grad, needs_input_gradient(run, decoder_.layer_unit(layer)));
  run.layers[i].reset();
}

void Stage::embedding_backward(MicroBatchRun& run) const {
  layers::Embedding& embedding = decoder_.embedding();
  const layers::PerLayerInputs& per_layer = decoder_.per_layer();
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

void Stage::backward(MicroBatchRun& run) const {
  MicroBatchRun* const one = &run;
  backward(MicroBatchRuns(&one, 1));
}

void Stage::backward(MicroBatchRuns runs) const {
  const MicroBatchRun& last = *runs.back();  // which completes the gradients
  const kernels::WorkRange pass(last.options.activity, Work::kBackward);
  const at::NoGradGuard no_grad;
  if (!has_head() && !last.is_empty() && needs_input_gradient(last, units_.end))
    receive_gradient(*runs[0]);
  for_layers(UnitPass::kBackward, [&](int64_t layer, int64_t unit) {
    if (has_backward(last, unit))
      for_runs(runs, unit, UnitPass::kBackward,
               [&](MicroBatchRun& run) { layer_backward(run, layer); });
    gradients_ready(last, unit);
  });
  if (!has_embedding()) {
    if (!last.is_empty() && needs_input_gradient(last, units_.first)) send_gradient(*runs[0]);
    return;
  }
  const int64_t unit = decoder_.embedding_unit();
  if (has_backward(last, unit))
    for_runs(runs, unit, UnitPass::kBackward, [&](MicroBatchRun& run) { embedding_backward(run); });
  gradients_ready(last, unit);
}

at::Tensor Stage::forward_backward(const PackedBatch& batch, const PassOptions& options) const {
  MicroBatchRun run(batch, options);
  forward(run);
  const at::Tensor sum = loss(run);
  backward(run);
  return sum;
}

at::Tensor Stage::loss(const PackedBatch& batch) const {
  MicroBatchRun run(batch);
  forward(run);
  return loss(run);
}

at::Tensor Stage::label_losses(const MicroBatchRun& run) const {
  const at::NoGradGuard no_grad;
  at::Tensor losses =
      at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(decoder_.options().device));
  if (!has_head()) return run.is_empty() ? losses : at::zeros_like(run.batch.labels, at::kFloat);
  with_unit(decoder_.head_unit(), UnitPass::kForward, [&] {
    if (run.is_empty()) return;
    losses = decoder_.backend().label_losses(run.hidden.index_select(0, run.batch.label_rows),
                                             decoder_.head(), run.batch.labels, head_rows(run));
  });
  return losses;
}

at::Tensor Stage::num_correct(const MicroBatchRun& run) const {
  constexpr int64_t kRows = 256;
  const at::NoGradGuard no_grad;
  at::Tensor correct =
      at::zeros({}, at::TensorOptions().dtype(at::kLong).device(decoder_.options().device));
  if (!has_head()) return correct;
  with_unit(decoder_.head_unit(), UnitPass::kForward, [&] {
    const int64_t num_labels = run.is_empty() ? 0 : run.batch.labels.numel();
    for (int64_t first = 0; first < num_labels; first += kRows) {
      const int64_t count = std::min(kRows, num_labels - first);
      const at::Tensor rows =
          run.hidden.index_select(0, run.batch.label_rows.narrow(0, first, count));
      const at::Tensor likeliest = layers::logits_of(decoder_.head(), rows).argmax(-1);
      correct += (likeliest == run.batch.labels.narrow(0, first, count)).sum();
    }
  });
  return correct;
}

at::Tensor Stage::token_losses(const PackedBatch& batch) const {
  MicroBatchRun run(batch);
  forward(run);
  return label_losses(run);
}

at::Tensor Stage::logits(const PackedBatch& batch, const at::Tensor& rows) const {
  const at::NoGradGuard no_grad;
  MicroBatchRun run(batch);
  forward(run);
  const at::Tensor hidden = run.hidden.index_select(0, rows);
  at::Tensor logits;
  with_unit(decoder_.head_unit(), UnitPass::kForward,
            [&] { logits = layers::logits_of(decoder_.head(), hidden); });
  return logits;
}

}  // namespace sftrun::model
