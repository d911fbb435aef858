#include "unit_passes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::model {

bool has_backward(Decoder& decoder, const MicroBatchRun& run, int64_t unit) {
  return run.trains && decoder.trains_at_or_below(unit);
}

bool needs_input_gradient(Decoder& decoder, const MicroBatchRun& run, int64_t unit) {
  return run.trains && decoder.trains_below(unit);
}

namespace {

using layers::TowerKeeps;

TowerKeeps kept_of_inputs(Decoder& decoder, const MicroBatchRun& run, int64_t unit) {
  return !has_backward(decoder, run, unit)          ? TowerKeeps::kNothing
         : decoder.options().gradient_checkpointing ? TowerKeeps::kInput
                                                    : TowerKeeps::kGraph;
}

void tower_forward(Decoder& decoder, MicroBatchRun& run, int64_t unit) {
  const PackedImages& images = *run.batch.images;
  if (!run.tower)
    run.tower = std::make_unique<layers::TowerPass>(decoder.tower(), images.input, images.layout);
  run.tower->forward(unit, kept_of_inputs(decoder, run, unit));
}

/// The place of a projector's features in the batch; -1: it has none.
int64_t features_of(const MicroBatchRun& run, int64_t projector) {
  const auto& features = run.batch.features;
  const auto found = std::find_if(features.begin(), features.end(), [&](const PackedFeatures& of) {
    return of.projector == projector;
  });
  return found == features.end() ? -1 : found - features.begin();
}

void projector_forward(Decoder& decoder, MicroBatchRun& run, int64_t unit) {
  const int64_t projector = unit - decoder.num_tower_units();
  const int64_t i = features_of(run, projector);
  if (i < 0) return;
  run.projectors.emplace_back(decoder.projectors()[static_cast<size_t>(projector)],
                              run.batch.features[static_cast<size_t>(i)].values);
  run.projectors.back().forward(kept_of_inputs(decoder, run, unit));
}

/// Features replace the embeddings of their rows.
void put_features(MicroBatchRun& run) {
  for (size_t i = 0; i < run.projectors.size(); ++i)
    put_rows(run.hidden, run.batch.features[i].places.rows,
             run.batch.features[i].places.of_rows(run.projectors[i].rows()));
}

/// The tokens in their place have no part in the result.
void take_feature_gradients(MicroBatchRun& run, bool is_needed) {
  for (const PackedFeatures& features : run.batch.features) {
    const FeaturePlaces& places = features.places;
    if (is_needed)
      run.projector_gradients.push_back(
          places.of_all(run.grad.index_select(0, places.rows), features.values.size(0)));
    run.grad.index_fill_(0, places.rows, 0);
  }
}

}  // namespace

void inputs_forward(Decoder& decoder, MicroBatchRun& run, int64_t unit) {
  if (unit >= decoder.num_tower_units())
    projector_forward(decoder, run, unit);
  else if (run.batch.images)
    tower_forward(decoder, run, unit);
}

void inputs_backward(Decoder& decoder, MicroBatchRun& run, int64_t unit) {
  if (unit < decoder.num_tower_units()) {
    if (run.tower) run.tower->backward(unit, needs_input_gradient(decoder, run, unit));
    return;
  }
  const int64_t i = features_of(run, unit - decoder.num_tower_units());
  if (i < 0) return;
  const auto at = static_cast<size_t>(i);
  run.projectors[at].backward(std::exchange(run.projector_gradients[at], {}));
}

namespace {

/// hidden[rows] += features of DeepStack for the output of this layer.
void add_deepstack(const MicroBatchRun& run, int64_t layer, at::Tensor& hidden) {
  if (!run.tower || layer >= std::ssize(run.tower->deepstack_features())) return;
  const at::Tensor& features = run.tower->deepstack_features()[static_cast<size_t>(layer)];
  const FeaturePlaces& places = run.batch.images->places;
  hidden = hidden.index_add(0, places.rows, places.of_rows(features));
}

/// The gradient of those features is that of the rows that they were added to.
void keep_deepstack_gradient(Decoder& decoder, MicroBatchRun& run, int64_t layer) {
  if (!run.tower || layer >= std::ssize(run.tower->deepstack_features())) return;
  if (!needs_input_gradient(decoder, run, decoder.embedding_unit())) return;
  run.deepstack_gradients.resize(run.tower->deepstack_features().size());
  const FeaturePlaces& places = run.batch.images->places;
  run.deepstack_gradients[static_cast<size_t>(layer)] =
      places.of_all(run.grad.index_select(0, places.rows), run.tower->features().size(0));
}

}  // namespace

void embedding_forward(Decoder& decoder, MicroBatchRun& run) {
  run.hidden = run.trains ? decoder.embed_for_training(run.batch)
                          : decoder.embed(run.batch.tokens, run.context.adapters);
  if (run.tower) {
    const FeaturePlaces& places = run.batch.images->places;
    put_rows(run.hidden, places.rows, places.of_rows(run.tower->features()));
  }
  put_features(run);
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
  add_deepstack(run, layer, run.hidden);
}

void layer_backward(Decoder& decoder, MicroBatchRun& run, int64_t layer,
                    const InputStreams* streams) {
  const auto i = static_cast<size_t>(layer);
  keep_deepstack_gradient(decoder, run, layer);
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
    const at::Tensor placeholders = run.tower ? run.batch.images->places.rows : at::Tensor();
    const at::Tensor d = layers::per_layer_backward(
        per_layer, std::move(run.per_layer), run.batch.tokens,
        run.context.shared_state->d_per_layer, run.context,
        embedding.trains() || needs_input_gradient(decoder, run, decoder.embedding_unit()),
        placeholders);
    if (d.defined()) run.grad = run.grad + d;
  }
  if (run.tower) {
    const FeaturePlaces& places = run.batch.images->places;
    if (needs_input_gradient(decoder, run, decoder.embedding_unit()))
      run.tower->set_gradients(
          places.of_all(run.grad.index_select(0, places.rows), run.tower->features().size(0)),
          std::exchange(run.deepstack_gradients, {}));
    run.grad.index_fill_(0, places.rows,
                         0);  // the tokens in their place have no part in the result
  }
  take_feature_gradients(run, needs_input_gradient(decoder, run, decoder.embedding_unit()));
  if (embedding.trains()) layers::embedding_backward(embedding, run.batch.tokens, run.grad);
}

namespace {

layers::BatchContext head_rows(Decoder& decoder, const MicroBatchRun& run) {
  const auto& lora = decoder.head().linear.lora;
  if (run.trains && lora && lora->dropout > 0)
    return layers::dropout_rows(run.context, run.batch.label_rows);
  layers::BatchContext rows;
  rows.adapters = run.context.adapters;
  return rows;
}

}  // namespace

namespace {

/// Of this rank's labelled rows, fp32; undefined: 1.
at::Tensor row_factors_of(const MicroBatchRun& run) {
  const at::Tensor& of_pass = run.options.row_factors;
  return run.batch.own_of(of_pass.defined() ? of_pass
                                            : run.batch.values_of(data::LabelColumn::kWeight));
}

/// Over the ranks that share the rows of the micro-batch.   @param of_rank undefined: so is the sum
at::Tensor sum_of_ranks(const MicroBatchRun& run, const at::Tensor& of_rank) {
  if (!run.context.share || !of_rank.defined()) return of_rank;
  at::Tensor sum = of_rank.clone();
  run.context.share->ranks().sum(sum);
  return sum;
}

/// What the teacher says of this rank's labels.
layers::TeacherTargets own_targets(const PackedBatch& batch) {
  layers::TeacherTargets own = *batch.teacher;
  own.tokens = batch.own_of(own.tokens), own.log_probs = batch.own_of(own.log_probs);
  return own;
}

layers::HeadGrad head_grad(Decoder& decoder, const MicroBatchRun& run) {
  using layers::HeadGrad;
  const bool trains_layers = needs_input_gradient(decoder, run, decoder.head_unit());
  return trains_layers                                 ? HeadGrad::kInput
         : run.trains && !decoder.parameters().empty() ? HeadGrad::kParameters
                                                       : HeadGrad::kNone;
}

/// The gradient of the last layer's output is zero but for the labelled rows.
void set_gradient(Decoder& decoder, MicroBatchRun& run, const at::Tensor& hidden,
                  const at::Tensor& of_rows) {
  const int64_t spare = decoder.layers().back().feed_forward.joint_down.spare();
  run.grad = at::zeros({hidden.size(0), hidden.size(1) + spare}, hidden.options())
                 .narrow(1, 0, hidden.size(1));
  run.grad.index_copy_(0, run.batch.label_rows, of_rows);
}

at::Tensor score_loss(Decoder& decoder, MicroBatchRun& run) {
  const layers::HeadGrad wanted = head_grad(decoder, run);
  const at::Tensor hidden = std::exchange(run.hidden, {});
  const layers::HeadLoss result =
      decoder.backend().score_loss(hidden.index_select(0, run.batch.label_rows), decoder.head(),
                                   run.options.score_loss, run.options.grad_scale, wanted);
  if (wanted == layers::HeadGrad::kInput) set_gradient(decoder, run, hidden, result.grad_input);
  return result.loss_sum;
}

at::Tensor embedding_loss(Decoder& decoder, MicroBatchRun& run) {
  const layers::HeadGrad wanted = head_grad(decoder, run);
  const at::Tensor hidden = std::exchange(run.hidden, {});
  const layers::HeadLoss result = decoder.backend().embedding_loss(
      hidden.index_select(0, run.batch.label_rows), decoder.head(), *run.batch.pooled,
      run.options.score_loss, run.options.grad_scale, wanted);
  if (wanted == layers::HeadGrad::kInput) set_gradient(decoder, run, hidden, result.grad_input);
  return result.loss_sum;
}

}  // namespace

at::Tensor head_loss(Decoder& decoder, MicroBatchRun& run) {
  if (run.batch.pooled) return embedding_loss(decoder, run);
  if (decoder.arch().score) return score_loss(decoder, run);
  const PackedBatch& batch = run.batch;
  const layers::HeadGrad wanted = head_grad(decoder, run);
  const at::Tensor hidden = std::exchange(run.hidden, {});
  const kernels::GradScale scale =
      run.trains
          ? kernels::GradScale{run.options.grad_scale, batch.grad_factor, row_factors_of(run)}
          : kernels::GradScale{1.0, {}, row_factors_of(run)};
  const at::Tensor input = hidden.index_select(0, batch.label_rows);
  const layers::Backend& backend = decoder.backend();
  const layers::HeadLoss result =
      batch.teacher
          ? backend.distillation_loss(input, decoder.head(), batch.own_of(batch.labels),
                                      own_targets(batch), scale, wanted, head_rows(decoder, run))
          : backend.head_loss(input, decoder.head(), batch.own_of(batch.labels), scale, wanted,
                              head_rows(decoder, run));
  run.divergence_sum = sum_of_ranks(run, result.divergence_sum);
  run.cross_entropy_sum = sum_of_ranks(run, result.cross_entropy_sum);
  if (wanted == layers::HeadGrad::kInput) set_gradient(decoder, run, hidden, result.grad_input);
  return sum_of_ranks(run, result.loss_sum);
}

namespace {

/// Of all labels of the micro-batch [N, …], from those of this rank.
at::Tensor of_all_labels(const MicroBatchRun& run, const at::Tensor& own) {
  if (!run.context.share) return own;
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = run.batch.labels.numel();
  const at::Tensor all = at::zeros(shape, own.options());
  run.batch.own_of(all).copy_(own);
  run.context.share->ranks().sum(all);
  return all;
}

}  // namespace

at::Tensor losses_of_labels(Decoder& decoder, const MicroBatchRun& run) {
  const PackedBatch& batch = run.batch;
  return of_all_labels(run, decoder.backend().label_losses(
                                run.hidden.index_select(0, batch.label_rows), decoder.head(),
                                batch.own_of(batch.labels), head_rows(decoder, run)));
}

layers::TeacherTargets top_tokens(Decoder& decoder, const MicroBatchRun& run, int64_t k,
                                  int64_t num_tokens, double temperature) {
  const PackedBatch& batch = run.batch;
  layers::TeacherTargets own = layers::top_tokens(
      decoder.head(), run.hidden.index_select(0, batch.label_rows), k, num_tokens, temperature);
  own.tokens = of_all_labels(run, own.tokens);
  own.log_probs = of_all_labels(run, own.log_probs);
  return own;
}

void add_correct(Decoder& decoder, const MicroBatchRun& run, at::Tensor& sum) {
  constexpr int64_t kRows = 256;
  const at::Tensor labels = run.batch.own_of(run.batch.labels),
                   weights = run.batch.own_of(run.batch.values_of(data::LabelColumn::kWeight));
  at::Tensor correct = at::zeros_like(sum);
  for (int64_t first = 0; first < labels.numel(); first += kRows) {
    const int64_t num_rows = std::min(kRows, labels.numel() - first);
    const at::Tensor rows =
        run.hidden.index_select(0, run.batch.label_rows.narrow(0, first, num_rows));
    const at::Tensor likeliest = layers::logits_of(decoder.head(), rows).argmax(-1);
    const at::Tensor are_right = (likeliest == labels.narrow(0, first, num_rows)).to(at::kDouble);
    correct += weights.defined() ? (are_right * weights.narrow(0, first, num_rows)).sum()
                                 : are_right.sum();
  }
  sum += sum_of_ranks(run, correct);
}

}  // namespace sftrun::model
