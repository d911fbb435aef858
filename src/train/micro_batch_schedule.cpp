#include "sftrun/train/micro_batch_schedule.h"

#include <ATen/ATen.h>

#include "sftrun/model/stage.h"

namespace sftrun::train {
namespace {

model::PassGraphs::Options graph_options(const parallel::Strategy& strategy,
                                         const Objective& objective,
                                         const config::TrainConfig& config) {
  return {.use = graph_use(config.cuda_graphs),
          .has_aux_loss = config.router_aux_loss_coef.value_or(0) > 0,
          .needs_two_passes = objective.needs_sums(),
          .communicates_in_passes = strategy.communicates_in_passes()};
}

class OneStageSchedule final : public MicroBatchSchedule {
 public:
  OneStageSchedule(model::Decoder& decoder, parallel::Strategy& strategy,
                   const Objective& objective, const config::TrainConfig& config)
      : objective_(objective),
        stage_(decoder, &strategy),
        passes_(stage_, graph_options(strategy, objective, config)),
        is_pinned_(config.dataloader_pin_memory) {}

  StepSums run(const StepWork& work) override {
    StepSums sums;
    for (int64_t i = 0; i < work.num_micro_batches; ++i) {
      const data::Batch batch = work.micro_batch(i);
      model::AuxLoss aux{.grad_scale = work.aux_grad_scale.value_or(0)};
      const model::PassOptions options{.grad_scale = work.grad_scale,
                                       .aux = work.aux_grad_scale ? &aux : nullptr,
                                       .completes_gradients = i + 1 == work.num_micro_batches,
                                       .activity = work.activity};
      objective_.needs_sums() ? two_passes(batch, work, options, sums)
                              : one_pass(batch, work, options, sums);
      if (work.aux_grad_scale) sums.aux_losses.push_back(aux.value);
      sums.num_terms += objective_.count_terms(counts_of(batch));
    }
    return sums;
  }

  void log_use() const override { passes_.log_use(); }

 private:
  /// The gradient of each row is known before the forward pass.
  void one_pass(const data::Batch& batch, const StepWork& work, const model::PassOptions& options,
                StepSums& sums) {
    sums.losses.push_back(passes_.forward_backward(batch, work.randomness, is_pinned_, options));
  }

  /// The gradient of each row depends on sums over documents: the head runs twice.
  void two_passes(const data::Batch& batch, const StepWork& work, const model::PassOptions& options,
                  StepSums& sums) {
    model::Decoder& decoder = stage_.decoder();
    model::Randomness randomness = work.randomness;
    randomness.training = false;  // no dropout: the model is compared with a reference
    const model::PackedBatch packed =
        model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), randomness,
                             {.is_pinned = is_pinned_, .with_documents = true});
    model::MicroBatchRun run(packed, options);
    const ObjectiveValue value = forward_documents(stage_, run, objective_);
    if (!run.is_empty()) run.options.row_factors = row_factors(value, packed.label_documents);
    stage_.loss(run);
    stage_.backward(run);
    sums.losses.push_back(value.loss_sum);
    add_metrics(value.metrics, sums);
  }

  const Objective& objective_;
  model::Stage stage_;
  model::PassGraphs passes_;
  bool is_pinned_;
};

}  // namespace

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

/// Sum of log p over the labels of each document [documents] fp64.
/// @param run after the stage's forward pass
at::Tensor document_sums(const model::Stage& stage, const model::MicroBatchRun& run) {
  const at::Tensor losses = stage.label_losses(run);
  if (run.is_empty()) return at::zeros({0}, losses.options().dtype(at::kDouble));
  const auto documents = static_cast<int64_t>(run.batch.context.cu_seqlens.size()) - 1;
  return sums_by_document(losses, run.batch.label_documents, documents);
}

/// The same by the reference model, which is the model without adapters; undefined if the objective
/// does not read it.
at::Tensor reference_sums(const model::Stage& stage, const model::PackedBatch& batch,
                          const Objective& objective) {
  if (!objective.needs_reference()) return {};
  model::MicroBatchRun run(batch, /*adapters=*/false);
  stage.forward(run);
  return document_sums(stage, run);
}

}  // namespace

ObjectiveValue forward_documents(const model::Stage& stage, model::MicroBatchRun& run,
                                 const Objective& objective) {
  DocumentSums documents{.reference = reference_sums(stage, run.batch, objective)};
  stage.forward(run);
  documents.policy = document_sums(stage, run);
  return objective.evaluate(documents);
}

BatchCounts counts_of(const data::Batch& batch) {
  return {.label_tokens = batch.label_tokens,
          .documents = static_cast<int64_t>(batch.document_keys.size())};
}

std::unique_ptr<MicroBatchSchedule> one_stage_schedule(model::Decoder& decoder,
                                                       parallel::Strategy& strategy,
                                                       const Objective& objective,
                                                       const config::TrainConfig& config) {
  return std::make_unique<OneStageSchedule>(decoder, strategy, objective, config);
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
