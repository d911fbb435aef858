#include "sftrun/model/stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/model/unit_use.h"
#include "unit_passes.h"

namespace sftrun::model {

using layers::UnitPass;

namespace {

/// Until its end, passes read what the run asks for.
class ValuesOfRun {
 public:
  ValuesOfRun(layers::UnitHooks* hooks, const MicroBatchRun& run)
      : hooks_(run.values == PassValues::kStart ? hooks : nullptr) {
    SFTRUN_CHECK(run.values != PassValues::kStart || hooks != nullptr);
    if (hooks_ != nullptr) hooks_->read_start(true);
  }
  ~ValuesOfRun() {
    if (hooks_ != nullptr) hooks_->read_start(false);
  }
  ValuesOfRun(const ValuesOfRun&) = delete;
  ValuesOfRun& operator=(const ValuesOfRun&) = delete;

 private:
  layers::UnitHooks* hooks_;
};

/// Zeros [T, hidden] with `spare` columns after each row.
at::Tensor new_rows(const Decoder& decoder, const MicroBatchRun& run, int64_t spare) {
  const DecoderOptions& options = decoder.options();
  const int64_t width = decoder.arch().hidden_size;
  return at::zeros({run.batch.num_tokens(), width + spare},
                   at::TensorOptions().dtype(options.dtype).device(options.device))
      .narrow(1, 0, width);
}

/// The gradient of this stage's output, from the next stage.
at::Tensor received_gradient(Decoder& decoder, layers::StageLinks& links,
                             const MicroBatchRun& run) {
  at::Tensor grad = new_rows(decoder, run, 0);
  links.receive_gradient(grad);
  const int64_t last = decoder.held_units().end - 1 - decoder.layer_unit(0);  // -1: no layer here
  const int64_t spare =
      last < 0 ? 0 : decoder.layers()[static_cast<size_t>(last)].feed_forward.joint_down.spare();
  return spare == 0 ? grad : new_rows(decoder, run, spare).copy_(grad);
}

}  // namespace

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
  const ValuesOfRun values(hooks_, *runs[0]);
  for (MicroBatchRun* run : runs) {
    run->layers.resize(static_cast<size_t>(decoder_.arch().num_layers));
    if (run->is_empty()) continue;
    using Unpacking = layers::DequantPrefetcher::Pass;
    decoder_.joints().prepare(run->trains ? Unpacking::kTraining : Unpacking::kForward, hooks_);
  }
  if (has_embedding()) {
    for (int64_t unit = 0; unit < decoder_.embedding_unit(); ++unit)
      for_runs(runs, unit, UnitPass::kForward,
               [&](MicroBatchRun& run) { inputs_forward(decoder_, run, unit); });
    for_runs(runs, decoder_.embedding_unit(), UnitPass::kForward,
             [&](MicroBatchRun& run) { embedding_forward(decoder_, run); });
  } else if (!runs[0]->is_empty()) {
    runs[0]->hidden = new_rows(decoder_, *runs[0], 0);
    links_->receive_hidden(runs[0]->hidden);
  }
  for (MicroBatchRun* run : runs) {
    SFTRUN_CHECK(run->options.aux == nullptr || has_all_units());  // it counts over all layers
    if (run->options.aux != nullptr && !run->is_empty())
      decoder_.count_router_choices(run->context);
  }
  for_layers(UnitPass::kForward, [&](int64_t layer, int64_t unit) {
    for_runs(runs, unit, UnitPass::kForward, [&](MicroBatchRun& run) {
      layer_forward(decoder_, run, layer, input_streams_.get());
    });
  });
  if (!has_head() && !runs[0]->is_empty())
    links_->send_hidden(std::exchange(runs[0]->hidden, {}).contiguous());
  for (MicroBatchRun* run : runs)
    if (AuxLoss* aux = run->options.aux)
      aux->value = run->is_empty()
                       ? no_loss()
                       : layers::close_balance(run->context.shared_state->balance, aux->grad_scale,
                                               run->context.share.get());
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
  const ValuesOfRun values(hooks_, last);
  std::vector<at::Tensor> sums(runs.size());
  const int64_t unit = decoder_.head_unit();
  if (has_head()) {
    with_unit(unit, last.trains ? UnitPass::kBackward : UnitPass::kForward, [&] {
      for (size_t i = 0; i < runs.size(); ++i)
        sums[i] = runs[i]->is_empty() ? no_loss() : head_loss(decoder_, *runs[i]);
    });
    if (last.trains) gradients_ready(last, unit);
    return sums;
  }
  for (at::Tensor& sum : sums) sum = no_loss();
  return sums;
}

void Stage::backward(MicroBatchRun& run) const {
  MicroBatchRun* const one = &run;
  backward(MicroBatchRuns(&one, 1));
}

void Stage::backward(MicroBatchRuns runs) const {
  const MicroBatchRun& last = *runs.back();  // which completes the gradients
  const kernels::WorkRange pass(last.options.activity, Work::kBackward);
  const at::NoGradGuard no_grad;
  if (!has_head() && !last.is_empty() && needs_input_gradient(decoder_, last, units_.end))
    runs[0]->grad = received_gradient(decoder_, *links_, *runs[0]);
  for_layers(UnitPass::kBackward, [&](int64_t layer, int64_t unit) {
    if (has_backward(decoder_, last, unit))
      for_runs(runs, unit, UnitPass::kBackward, [&](MicroBatchRun& run) {
        layer_backward(decoder_, run, layer, input_streams_.get());
      });
    gradients_ready(last, unit);
  });
  if (!has_embedding()) {
    if (!last.is_empty() && needs_input_gradient(decoder_, last, units_.first))
      links_->send_gradient(std::exchange(runs[0]->grad, {}).contiguous());
    return;
  }
  const int64_t unit = decoder_.embedding_unit();
  if (has_backward(decoder_, last, unit))
    for_runs(runs, unit, UnitPass::kBackward,
             [&](MicroBatchRun& run) { embedding_backward(decoder_, run); });
  gradients_ready(last, unit);
  for (int64_t of_inputs = unit - 1; of_inputs >= 0; --of_inputs) {
    if (has_backward(decoder_, last, of_inputs))
      for_runs(runs, of_inputs, UnitPass::kBackward,
               [&](MicroBatchRun& run) { inputs_backward(decoder_, run, of_inputs); });
    gradients_ready(last, of_inputs);
  }
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
  const ValuesOfRun values(hooks_, run);
  at::Tensor losses =
      at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(decoder_.options().device));
  if (!has_head()) return run.is_empty() ? losses : at::zeros_like(run.batch.labels, at::kFloat);
  with_unit(decoder_.head_unit(), UnitPass::kForward, [&] {
    if (!run.is_empty()) losses = losses_of_labels(decoder_, run);
  });
  return losses;
}

std::optional<layers::TeacherTargets> Stage::top_tokens(const MicroBatchRun& run, int64_t k,
                                                        int64_t num_tokens,
                                                        double temperature) const {
  if (!has_head()) return std::nullopt;
  const at::NoGradGuard no_grad;
  const ValuesOfRun values(hooks_, run);
  std::optional<layers::TeacherTargets> targets;
  with_unit(decoder_.head_unit(), UnitPass::kForward, [&] {
    if (!run.is_empty()) targets = model::top_tokens(decoder_, run, k, num_tokens, temperature);
  });
  return targets;
}

at::Tensor Stage::correct_weight(const MicroBatchRun& run) const {
  const at::NoGradGuard no_grad;
  const ValuesOfRun values(hooks_, run);
  at::Tensor correct = no_loss();
  if (!has_head()) return correct;
  with_unit(decoder_.head_unit(), UnitPass::kForward, [&] {
    if (!run.is_empty()) add_correct(decoder_, run, correct);
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
