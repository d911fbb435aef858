#include "sftrun/train/micro_batch_schedule.h"

#include <ATen/ATen.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/model/stage.h"
#include "sftrun/train/teacher.h"

namespace sftrun::train {
namespace {

model::PassGraphs::Options graph_options(const parallel::Strategy& strategy,
                                         const Objective& objective,
                                         const config::TrainConfig& config, bool copies_inputs) {
  return {.use = copies_inputs ? model::GraphUse::kOff : graph_use(config.cuda_graphs),
          .has_aux_loss = config.router_aux_loss_coef.value_or(0) > 0,
          .needs_two_passes = objective.info().is_of_documents(),
          .has_teacher = objective.info().needs_teacher,
          .communicates_in_passes = strategy.communicates_in_passes()};
}

/// One forward, one backward pass (1F1B, arXiv:2006.09503): a stage runs a backward pass as soon as
/// the stages after it can have brought the gradient back. So it keeps at most one micro-batch for
/// itself and for each of them. The last stage, and a single one, keeps one.
class StageSchedule final : public MicroBatchSchedule {
 public:
  StageSchedule(model::Decoder& decoder, parallel::Strategy& strategy, const Objective& objective,
                const config::TrainConfig& config)
      : objective_(objective),
        stage_(stage_of(decoder, strategy)),
        is_pinned_(config.dataloader_pin_memory) {
    if (stage_.has_all_units())
      passes_.emplace(stage_,
                      graph_options(strategy, objective, config, decoder.options().inputs_on_host));
  }

  StepSums run(const StepWork& work) override {
    StepSums sums;
    for (int64_t i = 0; i < work.num_micro_batches; ++i) {
      const data::Batch batch = work.micro_batch(i);
      model::AuxLoss aux{.grad_scale = work.aux_grad_scale.value_or(0)};
      const model::PassOptions options{.grad_scale = work.grad_scale,
                                       .aux = work.aux_grad_scale ? &aux : nullptr,
                                       .completes_gradients = i + 1 == work.num_micro_batches,
                                       .activity = work.activity};
      if (passes_ && objective_.info().is_cross_entropy) {
        sums.losses.push_back(
            passes_->forward_backward(batch, work.randomness, is_pinned_, options));
      } else {
        forward(batch, work, options, sums);
        if (static_cast<int64_t>(under_way_.size()) > stage_.num_stages_after()) backward();
      }
      if (work.aux_grad_scale) sums.aux_losses.push_back(aux.value);
      sums.num_terms += objective_.count_terms(counts_of(batch));
    }
    while (!under_way_.empty()) backward();
    return sums;
  }

  void log_use() const override {
    if (passes_) passes_->log_use();
  }

 private:
  /// A micro-batch between its forward and its backward pass.
  struct UnderWay {
    UnderWay(model::PackedBatch packed, const model::PassOptions& options)
        : batch(std::move(packed)), run(batch, options) {}
    model::PackedBatch batch;
    model::MicroBatchRun run;
  };

  /// The forward pass; on the last stage, the loss.
  void forward(const data::Batch& batch, const StepWork& work, const model::PassOptions& options,
               StepSums& sums) {
    const config::ObjectiveInfo& info = objective_.info();
    auto under_way = std::make_unique<UnderWay>(
        prepare_for(
            objective_, batch, stage_.decoder(),
            {.randomness = work.randomness, .is_pinned = is_pinned_, .activity = work.activity}),
        options);
    model::MicroBatchRun& run = under_way->run;
    if (info.embeds())
      forward_embeddings(run, batch, work.global_batch, sums);
    else if (info.has_scores())
      forward_scores(run, sums);
    else
      info.needs_sums() ? forward_two_passes(run, work.global_batch, sums)
                        : forward_one_pass(run, sums);
    under_way_.push_back(std::move(under_way));
  }

  /// The gradient of each row is known before the forward pass.
  void forward_one_pass(model::MicroBatchRun& run, StepSums& sums) const {
    stage_.forward(run);
    sums.losses.push_back(stage_.loss(run));
    add_metrics(head_metrics(run, sums.losses.back(), objective_), sums);
  }

  /// The gradients of the embeddings are known.
  void forward_embeddings(model::MicroBatchRun& run, const data::Batch& batch,
                          const GlobalBatch& global_batch, StepSums& sums) const {
    const ScoreValue value =
        embed_documents(stage_, run, objective_, batch.document_keys, *global_batch.embedded);
    sums.losses.push_back(value.loss_sum);
    add_metrics(value.metrics, sums);
  }

  /// The head has the gradient of the scores at once.
  void forward_scores(model::MicroBatchRun& run, StepSums& sums) const {
    const ScoreValue value = score_documents(stage_, run, objective_);
    sums.losses.push_back(value.loss_sum);
    add_metrics(value.metrics, sums);
  }

  /// The gradient of each row depends on sums over documents: the head runs twice.
  void forward_two_passes(model::MicroBatchRun& run, const GlobalBatch& global_batch,
                          StepSums& sums) const {
    const ObjectiveValue value = forward_documents(stage_, run, objective_, global_batch);
    if (!run.is_empty()) run.options.row_factors = row_factors(value.weights, run.batch);
    stage_.loss(run);
    sums.losses.push_back(value.loss_sum);
    add_metrics(value.metrics, sums);
  }

  /// The backward pass of the oldest micro-batch.
  void backward() {
    stage_.backward(under_way_.front()->run);
    under_way_.pop_front();
  }

  const Objective& objective_;
  model::Stage stage_;
  std::optional<model::PassGraphs> passes_;  // nullopt: a stage of a pipeline
  std::deque<std::unique_ptr<UnderWay>> under_way_;
  bool is_pinned_;
};

/// All micro-batches of a step pass each unit one after the other. What a strategy does for a unit it
/// does once per step and direction: copying frozen weights from the host, gathering, reducing.
class UnitSchedule final : public MicroBatchSchedule {
 public:
  UnitSchedule(model::Decoder& decoder, parallel::Strategy& strategy, const Objective& objective,
               const config::TrainConfig& config)
      : objective_(objective),
        stage_(stage_of(decoder, strategy)),
        is_pinned_(config.dataloader_pin_memory) {
    SFTRUN_CHECK(!objective.info().is_of_documents() && stage_.has_all_units());
  }

  StepSums run(const StepWork& work) override {
    StepSums sums;
    std::deque<model::PackedBatch> batches;  // whose runs refer to them
    std::deque<model::AuxLoss> aux;
    std::vector<std::unique_ptr<model::MicroBatchRun>> owned;
    std::vector<model::MicroBatchRun*> runs;
    for (int64_t i = 0; i < work.num_micro_batches; ++i) {
      const data::Batch batch = work.micro_batch(i);
      aux.push_back({.grad_scale = work.aux_grad_scale.value_or(0)});
      batches.push_back(prepare_for(
          objective_, batch, stage_.decoder(),
          {.randomness = work.randomness, .is_pinned = is_pinned_, .activity = work.activity}));
      owned.push_back(std::make_unique<model::MicroBatchRun>(
          batches.back(), model::PassOptions{.grad_scale = work.grad_scale,
                                             .aux = work.aux_grad_scale ? &aux.back() : nullptr,
                                             .completes_gradients = i + 1 == work.num_micro_batches,
                                             .activity = work.activity}));
      runs.push_back(owned.back().get());
      sums.num_terms += objective_.count_terms(counts_of(batch));
    }
    stage_.forward(runs);
    sums.losses = stage_.losses(runs);
    for (size_t i = 0; i < runs.size(); ++i)
      add_metrics(head_metrics(*runs[i], sums.losses[i], objective_), sums);
    stage_.backward(runs);
    if (work.aux_grad_scale)
      for (const model::AuxLoss& of_batch : aux) sums.aux_losses.push_back(of_batch.value);
    return sums;
  }

 private:
  const Objective& objective_;
  model::Stage stage_;
  bool is_pinned_;
};

}  // namespace

std::vector<ObjectiveMetric> head_metrics(const model::MicroBatchRun& run, const at::Tensor& loss,
                                          const Objective& objective) {
  if (!objective.info().needs_teacher) return {};
  const auto of = [&](const at::Tensor& sum) { return sum.defined() ? sum : at::zeros_like(loss); };
  return {{"kd_loss", of(run.divergence_sum)},
          {std::string(config::kCrossEntropyMetric), of(run.cross_entropy_sum)}};
}

void add_metrics(const std::vector<ObjectiveMetric>& metrics, StepSums& sums) {
  if (sums.metrics.empty()) {
    for (const ObjectiveMetric& metric : metrics) {
      sums.metric_names.push_back(metric.name);
      sums.metrics.push_back(metric.sum);
    }
    return;
  }
  for (size_t i = 0; i < metrics.size(); ++i) sums.metrics[i] = sums.metrics[i] + metrics[i].sum;
}

namespace {

/// Log p of labels, summed over documents.
struct LabelSums {
  at::Tensor answers, tails, prompts;  ///< [documents] fp64; undefined: not apart
  at::Tensor rows;                     ///< [labelled rows] fp64, not summed
};

/// @param run after the stage's forward pass
LabelSums label_sums(const model::Stage& stage, const model::MicroBatchRun& run,
                     const model::LabelKinds& kinds) {
  const at::Tensor losses = stage.label_losses(run);
  const auto of = [&](data::LabelKind kind) {
    if (run.is_empty()) return at::zeros({0}, losses.options().dtype(at::kDouble));
    return sums_by_document(losses, run.batch, kind);
  };
  LabelSums sums{.answers = of(data::LabelKind::kAnswer), .rows = -losses.to(at::kDouble)};
  if (kinds.tails) sums.tails = of(data::LabelKind::kTail);
  if (kinds.prompts_of_chosen) sums.prompts = of(data::LabelKind::kPrompt);
  return sums;
}

/// The same by the reference model; undefined if the objective does not read it.
LabelSums reference_sums(const model::Stage& stage, const model::PackedBatch& batch,
                         const Objective& objective) {
  if (!objective.config().needs_reference()) return {};
  if (batch.reference_logps.defined()) return {.answers = batch.reference_logps};
  model::MicroBatchRun run(batch, stage.reference_values());
  stage.forward(run);
  return label_sums(stage, run, objective.label_kinds());
}

/// Of sampled answers; without rows in an empty micro-batch.
SampledRows sampled_rows(const model::MicroBatchRun& run, const LabelSums& policy,
                         const LabelSums& reference) {
  const auto column = [&](data::LabelColumn which) {
    const at::Tensor& values = run.batch.values_of(which);
    return values.defined() ? values.to(at::kDouble) : at::Tensor();
  };
  return {.policy = policy.rows,
          .reference = reference.rows,
          .old_logps = column(data::LabelColumn::kOldLogp),
          .sampled_logps = column(data::LabelColumn::kSampledLogp),
          .documents =
              run.is_empty() ? at::zeros_like(policy.rows, at::kLong) : run.batch.label_documents,
          .is_label = run.is_empty() ? at::zeros_like(policy.rows, at::kBool)
                                     : run.batch.labels.ne(data::kIgnoreIndex)};
}

/// Of a batch, or empty.
at::Tensor of_documents(const at::Tensor& values, const LabelSums& policy) {
  return values.defined() ? values : at::zeros_like(policy.answers);
}

}  // namespace

ObjectiveValue forward_documents(const model::Stage& stage, model::MicroBatchRun& run,
                                 const Objective& objective, const GlobalBatch& global_batch) {
  const LabelSums reference = reference_sums(stage, run.batch, objective);
  stage.forward(run);
  const LabelSums policy = label_sums(stage, run, objective.label_kinds());
  const bool is_sampled = objective.info().reads_samples();
  return objective.evaluate(
      {.policy = policy.answers,
       .reference = reference.answers,
       .lengths = run.is_empty() ? at::zeros_like(policy.answers) : lengths_by_document(run.batch),
       .tail_policy = policy.tails,
       .tail_reference = reference.tails,
       .prompt_policy = policy.prompts,
       .is_desirable =
           run.is_empty() ? at::zeros_like(policy.answers, at::kBool) : run.batch.is_desirable,
       .divergence = global_batch.divergence,
       .rows = is_sampled ? sampled_rows(run, policy, reference) : SampledRows(),
       .advantages = of_documents(run.batch.advantages, policy),
       .scores = of_documents(run.batch.scores, policy),
       .is_cut_short = of_documents(run.batch.is_cut_short, policy)},
      global_batch.counts);
}

ScoreValue score_documents(const model::Stage& stage, model::MicroBatchRun& run,
                           const Objective& objective, bool wants_confusion) {
  std::optional<ScoreValue> value;
  run.options.score_loss = [&](const at::Tensor& scores) -> layers::ScoredLoss {
    value = objective.evaluate_scores(scores, run.batch, wants_confusion);
    return {value->loss_sum, value->gradient};
  };
  stage.forward(run);
  stage.loss(run);
  run.options.score_loss = {};
  if (value) return *value;
  // Nothing to score, or another stage has the head.
  const auto num_documents = run.batch.counts.defined() ? run.batch.counts.size(0) : 0;
  const spec::ArchSpec& arch = stage.decoder().arch();
  const at::Tensor zeros = at::zeros({num_documents, arch.score->num_labels},
                                     at::TensorOptions().device(stage.decoder().options().device));
  return objective.evaluate_scores(zeros, run.batch, wants_confusion);
}

at::Tensor log_ratio_sum(const model::Stage& stage, const model::PackedBatch& batch,
                         const Objective& objective) {
  const LabelSums reference = reference_sums(stage, batch, objective);
  model::MicroBatchRun run(batch);
  stage.forward(run);
  return (label_sums(stage, run, {}).answers - reference.answers).sum();
}

model::BatchOptions batch_options(const Objective& objective, bool is_pinned) {
  return {.is_pinned = is_pinned,
          .with_documents = objective.info().needs_sums(),
          .kinds = objective.label_kinds(),
          .distillation = objective.teacher() == nullptr ? objective.distillation() : std::nullopt,
          .pooling = objective.pooling()};
}

model::PackedBatch prepare_for(const Objective& objective, const data::Batch& batch,
                               model::Decoder& decoder, const Preparation& how) {
  // The student's first: it takes note of images that cannot be read.
  model::PackedBatch packed =
      model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), how.randomness,
                           batch_options(objective, how.is_pinned));
  if (objective.teacher() == nullptr) return packed;
  packed.teacher = objective.teacher()->targets(batch, how.activity);
  SFTRUN_CHECK(!packed.teacher || packed.teacher->tokens.size(0) == packed.labels.numel());
  return packed;
}

BatchCounts counts_of(const data::Batch& batch) {
  return {.documents = std::ssize(batch.document_keys) - batch.num_lost,
          .label_tokens = batch.label_tokens,
          .label_weight = batch.label_weight()};
}

model::Stage stage_of(model::Decoder& decoder, parallel::Strategy& strategy) {
  return {decoder, &strategy, strategy.links()};
}

std::unique_ptr<MicroBatchSchedule> make_schedule(model::Decoder& decoder,
                                                  parallel::Strategy& strategy,
                                                  const Objective& objective,
                                                  const config::RunConfig& run) {
  const config::TrainConfig& config = run.train;
  if (run.parallel.fetch == config::Fetch::kPerStep && config.grad_accum.value.value_or(1) > 1)
    return std::make_unique<UnitSchedule>(decoder, strategy, objective, config);
  return std::make_unique<StageSchedule>(decoder, strategy, objective, config);
}

model::GraphUse graph_use(config::CudaGraphs choice) {
  switch (choice) {
    case config::CudaGraphs::kOff:
      return model::GraphUse::kOff;
    case config::CudaGraphs::kOn:
      return model::GraphUse::kAlways;
    case config::CudaGraphs::kAuto:
      break;
  }
  return model::GraphUse::kWhereItPays;
}

}  // namespace sftrun::train
