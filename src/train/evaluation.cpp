#include "sftrun/train/evaluation.h"

#include <ATen/ATen.h>

#include "sftrun/core/clock.h"
#include "sftrun/model/stage.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/micro_batch_schedule.h"

namespace sftrun::train {

Evaluator::Evaluator(const config::RunConfig& config, const data::Dataset& val)
    : val_(val),
      plan_(make_batch_plan(config, val, /*shuffle=*/false, val.examples().size())),
      micro_batch_size_(config.train.eval_batch_size.value.value_or(1)),
      is_pinned_(config.train.dataloader_pin_memory) {}

namespace {

/// Adds a micro-batch's terms to `sums`: its loss, then the objective's metrics.
void add_terms(const model::Stage& stage, const model::PackedBatch& batch,
               const Objective& objective, StepSums& sums) {
  if (!objective.needs_sums()) {
    add_metrics({{"loss", stage.loss(batch)}}, sums);
    return;
  }
  model::MicroBatchRun run(batch);
  const ObjectiveValue value = forward_documents(stage, run, objective);
  std::vector<ObjectiveMetric> terms = {{"loss", value.loss_sum}};
  terms.insert(terms.end(), value.metrics.begin(), value.metrics.end());
  add_metrics(terms, sums);
}

}  // namespace

EvalResult Evaluator::run(model::Decoder& decoder, parallel::Strategy& strategy,
                          const Objective& objective, parallel::Communicator& comm) const {
  const double start = monotonic_seconds();
  const model::Stage stage = stage_of(decoder, strategy);
  const parallel::Mesh& mesh = strategy.mesh();
  // The whole validation set is one batch
  const std::vector<data::Bin> bins = plan_.global_batch(0, 0);
  const auto num_bins = static_cast<int64_t>(bins.size());
  StepSums sums;
  for (int64_t first = 0; first < num_bins; first += mesh.dp_size() * micro_batch_size_) {
    const data::Batch batch = data::make_batch(
        val_.examples(), bins, first + mesh.dp_rank() * micro_batch_size_, micro_batch_size_);
    const model::PackedBatch packed =
        model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {},
                             {.is_pinned = is_pinned_, .with_documents = objective.needs_sums()});
    add_terms(stage, packed, objective, sums);
    sums.num_terms += objective.count_terms(counts_of(batch));
  }
  std::vector<double> values = {static_cast<double>(sums.num_terms)};
  for (const at::Tensor& metric : sums.metrics) values.push_back(metric.item<double>());
  std::vector<double> totals(values.size());
  const auto ranks = comm.all_gather(values);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!mesh.counts_loss_of(static_cast<int>(rank))) continue;
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += ranks[rank][i];
  }
  EvalResult result{.num_terms = static_cast<int64_t>(totals[0])};
  result.loss = totals[1] / totals[0];
  for (size_t i = 1; i < sums.metric_names.size(); ++i)
    result.metrics.emplace_back(sums.metric_names[i], totals[i + 1] / totals[0]);
  result.seconds = monotonic_seconds() - start;
  return result;
}

}  // namespace sftrun::train
