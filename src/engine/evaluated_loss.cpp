#include "evaluated_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "sftrun/data/batch_plan.h"
#include "sftrun/parallel/counted_sums.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/objective.h"
#include "shared_passes.h"

namespace sftrun::engine {
namespace {

/// Consecutive examples of a part, with about as many tokens as a pass needs to be fast.
/// @param together so many examples stay in one bin
std::vector<data::Bin> bins_of(const data::ExampleStore& examples, const data::DatasetPart& part,
                               int64_t together = 1) {
  const auto num_tokens = [&](size_t i) {
    return int64_t{examples.stored(part.begin + static_cast<int64_t>(i)).length};
  };
  std::vector<data::Bin> bins;
  for (const Neighbours& piece : pieces_for_passes(static_cast<size_t>(part.end - part.begin),
                                                   num_tokens, static_cast<size_t>(together))) {
    data::Bin& bin = bins.emplace_back(piece.end - piece.first);
    std::iota(bin.begin(), bin.end(), part.begin + static_cast<int64_t>(piece.first));
  }
  return bins;
}

/// The bin of this rank; empty: the pass is for the other ranks alone.
data::Bin bin_of(const SharedPass& pass, const std::vector<data::Bin>& bins) {
  return pass.own ? bins[*pass.own] : data::Bin();
}

/// Sum over the labels.   @param run after the stage's forward pass; its last use
double divergence_of(const model::Stage& stage, model::MicroBatchRun& run,
                     const train::Objective& distillation) {
  const at::Tensor loss = stage.loss(run);
  return train::head_metrics(run, loss, distillation).front().sum.item<double>();
}

/// @param bin empty: a pass for the other ranks alone   @param distillation null: no teacher
LabelSums sums_of_bin(const model::Stage& stage, const data::Dataset& dataset, const data::Bin& bin,
                      const train::Objective* distillation) {
  const model::PackedBatch packed =
      distillation == nullptr
          ? device_batch(stage.decoder(), dataset, bin, {.with_documents = true})
          : prepared_batch(dataset, bin, [&](const data::Batch& batch) {
              return train::prepare_for(*distillation, batch, stage.decoder(), {});
            });
  model::MicroBatchRun run(packed);
  stage.forward(run);
  const at::Tensor losses = stage.label_losses(run).to(at::kDouble);
  const at::Tensor& weights = packed.values_of(data::LabelColumn::kWeight);
  const double correct = stage.correct_weight(run).item<double>();
  const double divergence = distillation == nullptr ? 0 : divergence_of(stage, run, *distillation);
  return {.loss = (weights.defined() ? losses * weights : losses).sum().item<double>(),
          .correct = correct,
          .weight = weights.defined() ? weights.sum(at::kDouble).item<double>()
                                      : static_cast<double>(losses.numel()),
          .labels = losses.numel(),
          .divergence = divergence};
}

/// @param bin empty: a pass for the other ranks alone   @return of each example of the bin
std::vector<double> logps_of_bin(const model::Stage& stage, model::PassValues values,
                                 const data::Dataset& dataset, const data::Bin& bin) {
  const model::PackedBatch packed =
      device_batch(stage.decoder(), dataset, bin, {.with_documents = true});
  model::MicroBatchRun run(packed, values);
  stage.forward(run);
  const at::Tensor losses = stage.label_losses(run);
  if (bin.empty()) return {};
  const at::Tensor sums = train::sums_by_document(losses, packed, data::LabelKind::kAnswer).cpu();
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

/// Ranks that have a model together must stop together.
std::function<int()> stop_of(const LoadedModel& model, Rank& rank,
                             const std::function<bool()>& stop_requested) {
  return [&] { return model.copy ? rank.stop_of_any_rank() : static_cast<int>(stop_requested()); };
}

/// What a micro-batch adds to `ScoredSums`.
struct DocumentValue {
  at::Tensor loss_sum;
  std::vector<train::ObjectiveMetric> metrics;
  at::Tensor confusion;
};
DocumentValue value_of_documents(const model::Stage& stage, const model::PackedBatch& packed,
                                 const train::Objective& objective,
                                 const train::GlobalBatch& whole) {
  model::MicroBatchRun run(packed);
  if (objective.info().has_scores()) {
    train::ScoreValue value = score_documents(stage, run, objective, /*wants_confusion=*/true);
    return {std::move(value.loss_sum), std::move(value.metrics), std::move(value.confusion)};
  }
  train::ObjectiveValue value = forward_documents(stage, run, objective, whole);
  return {std::move(value.loss_sum), std::move(value.metrics), {}};
}

}  // namespace

LabelSums& LabelSums::operator+=(const LabelSums& other) {
  loss += other.loss;
  correct += other.correct;
  weight += other.weight;
  labels += other.labels;
  divergence += other.divergence;
  return *this;
}

std::optional<std::vector<double>> label_logps(const model::Stage& stage,
                                               const parallel::Mesh& mesh, model::PassValues values,
                                               const data::Dataset& dataset, Rank& rank,
                                               const std::string& name) {
  const at::NoGradGuard no_grad;
  const data::ExampleStore& examples = dataset.examples();
  const std::vector<data::Bin> bins = bins_of(examples, {.begin = 0, .end = examples.size()});
  std::vector<double> own(static_cast<size_t>(examples.size()));
  const auto stop = [&] { return rank.stop_of_any_rank(); };
  const int code = share_passes(mesh, bins.size(), stop, [&](const SharedPass& pass) {
    rank.comm().activity().set_work(Work::kEvaluating);
    const data::Bin bin = bin_of(pass, bins);
    const std::vector<double> logps = logps_of_bin(stage, values, dataset, bin);
    for (size_t i = 0; i < logps.size(); ++i) own[static_cast<size_t>(bin[i])] = logps[i];
  });
  if (code != 0) return std::nullopt;
  rank.comm().barrier("reference of " + name);  // one rank may take long
  return parallel::counted_sums(rank.comm(), mesh, own);
}

ScoredSums scored_sums(const LoadedModel& model, const data::Dataset& dataset,
                       const config::TrainConfig& config, Rank& rank, const std::string& name,
                       const std::function<bool()>& stop_requested) {
  const at::NoGradGuard no_grad;
  const model::Stage stage = model.stage();
  const parallel::Mesh mesh = model.mesh(rank);
  const train::Objective objective(config);
  const auto& head = model.checkpoint->arch().score;
  const int64_t num_labels = head ? head->num_labels : 0;
  const data::ExampleStore& examples = dataset.examples();
  const auto bins = bins_of(examples, {.begin = 0, .end = examples.size()}, config.sequences());
  const train::GlobalBatch whole{.counts = data::counts_of(examples, bins)};
  const model::BatchOptions options = batch_options(objective, /*is_pinned=*/false);
  std::vector<std::string> names;
  const auto num_counts = static_cast<size_t>(objective.confusion_size(num_labels));
  std::vector<double> own, confusion(num_counts);  // own: terms, loss, metrics
  const auto stop = stop_of(model, rank, stop_requested);
  share_passes(mesh, bins.size(), stop, [&](const SharedPass& pass) {
    rank.comm().activity().set_work(Work::kEvaluating);
    const data::Bin bin = bin_of(pass, bins);
    const model::PackedBatch packed = device_batch(stage.decoder(), dataset, bin, options);
    const DocumentValue value = value_of_documents(stage, packed, objective, whole);
    std::vector<double> sums = {static_cast<double>(std::ssize(bin) / config.sequences()),
                                value.loss_sum.item<double>()};
    names.clear();
    for (const train::ObjectiveMetric& metric : value.metrics) {
      names.push_back(metric.name);
      sums.push_back(metric.sum.item<double>());
    }
    own.resize(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) own[i] += sums[i];
    if (!value.confusion.defined()) return;
    const at::Tensor counts = value.confusion.cpu().contiguous();
    for (size_t i = 0; i < num_counts; ++i) confusion[i] += counts.const_data_ptr<double>()[i];
  });
  rank.comm().barrier("losses of " + name);  // one rank may take long
  own.insert(own.end(), confusion.begin(), confusion.end());
  const std::vector<double> all = parallel::counted_sums(rank.comm(), mesh, own);
  ScoredSums sums;
  if (names.empty()) return sums;  // it was stopped
  sums.terms = all[0];
  sums.loss = all[1];
  for (size_t i = 0; i < names.size(); ++i)
    sums.metrics.emplace_back(names[i], all[i + 2] / std::max(1.0, sums.terms));
  sums.confusion.assign(all.end() - static_cast<std::ptrdiff_t>(num_counts), all.end());
  for (auto& metric : objective.metrics_of(sums.confusion, num_labels))
    sums.metrics.push_back(std::move(metric));
  return sums;
}

std::vector<LabelSums> label_sums(const LoadedModel& model, const data::Dataset& dataset,
                                  Rank& rank, const std::string& name,
                                  const std::function<bool()>& stop_requested,
                                  const train::Objective* distillation) {
  const at::NoGradGuard no_grad;
  const model::Stage stage = model.stage();
  const parallel::Mesh mesh = model.mesh(rank);
  const auto stop = stop_of(model, rank, stop_requested);
  constexpr size_t kSums = 5;
  std::vector<double> own;
  for (const data::DatasetPart& part : dataset.parts()) {
    LabelSums sums;
    const std::vector<data::Bin> bins = bins_of(dataset.examples(), part);
    share_passes(mesh, bins.size(), stop, [&](const SharedPass& pass) {
      rank.comm().activity().set_work(Work::kEvaluating);
      sums += sums_of_bin(stage, dataset, bin_of(pass, bins), distillation);
    });
    own.insert(own.end(), {sums.loss, sums.correct, sums.weight, static_cast<double>(sums.labels),
                           sums.divergence});
  }
  rank.comm().barrier("losses of " + name);  // one rank may take long
  const std::vector<double> all = parallel::counted_sums(rank.comm(), mesh, own);
  std::vector<LabelSums> totals;
  for (size_t i = 0; i < all.size(); i += kSums)
    totals.push_back(
        {all[i], all[i + 1], all[i + 2], static_cast<int64_t>(all[i + 3]), all[i + 4]});
  return totals;
}

}  // namespace sftrun::engine
