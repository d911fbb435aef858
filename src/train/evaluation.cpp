#include "sftrun/train/evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/clock.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/counted_sums.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/divergence.h"
#include "sftrun/train/embeddings.h"
#include "sftrun/train/lost_media.h"
#include "sftrun/train/micro_batch.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/stop_agreement.h"

namespace sftrun::train {

Evaluator::Evaluator(const config::RunConfig& config, const data::Dataset& val, data::BinCost cost)
    : val_(val),
      cost_(std::move(cost)),
      micro_batch_size_(config.train.eval_batch_size.value.value_or(1)),
      max_seq_len_(config.model.max_seq_len),
      retrieval_size_(config.train.global_batch_size.value.value_or(micro_batch_size_)),
      is_pinned_(config.train.dataloader_pin_memory),
      counts_correct_(config.train.eval_token_accuracy),
      bad_records_(config.data.bad_records) {
  // Each set is one batch.
  const auto plan_of = [&](std::span<const data::DatasetPart> parts) {
    return make_batch_plan(config, val, parts, /*shuffle=*/false, val.examples().size());
  };
  std::vector<std::string> names;
  for (const data::DatasetPart& part : val.parts()) names.push_back(part.name);
  names = config::distinct_set_names(std::move(names));
  for (size_t i = 0; i < names.size(); ++i) {
    const data::DatasetPart& part = val.parts()[i];
    if (part.begin < part.end) sets_.push_back({names[i], plan_of({&part, 1})});
  }
  if (sets_.empty()) sets_.push_back({"", plan_of({})});
}

namespace {

/// An exchange between the ranks empties a pipeline, so several micro-batches for each stage lie
/// between two of them.
constexpr int64_t kBatchesOfStage = 4;

/// Of an objective that predicts labels.   @param correct how many were right; null: not counted
std::vector<ObjectiveMetric> terms_of(const model::MicroBatchRun& run, const at::Tensor& loss,
                                      const Objective& objective,
                                      const at::Tensor* correct = nullptr) {
  std::vector<ObjectiveMetric> terms = {{"loss", loss}};
  if (correct != nullptr) terms.push_back({"token_accuracy", *correct});
  for (ObjectiveMetric& metric : head_metrics(run, loss, objective))
    terms.push_back(std::move(metric));
  return terms;
}

/// Adds a micro-batch's terms to `sums`: its loss, then the objective's metrics.
void add_terms(const model::Stage& stage, const model::PackedBatch& batch,
               const Objective& objective, const GlobalBatch& global_batch, bool counts_correct,
               StepSums& sums) {
  if (counts_correct) {
    model::MicroBatchRun run(batch);
    stage.forward(run);
    const at::Tensor correct = stage.correct_weight(run);
    add_metrics(terms_of(run, stage.loss(run), objective, &correct), sums);
    return;
  }
  if (!objective.info().is_of_documents()) {
    model::MicroBatchRun run(batch);
    stage.forward(run);
    add_metrics(terms_of(run, stage.loss(run), objective), sums);
    return;
  }
  model::MicroBatchRun run(batch);
  if (objective.info().has_scores()) {
    const ScoreValue value = score_documents(stage, run, objective, /*wants_confusion=*/true);
    std::vector<ObjectiveMetric> terms = {{"loss", value.loss_sum}};
    terms.insert(terms.end(), value.metrics.begin(), value.metrics.end());
    add_metrics(terms, sums);
    if (value.confusion.defined())
      sums.confusion =
          sums.confusion.defined() ? sums.confusion + value.confusion : value.confusion;
    return;
  }
  const ObjectiveValue value = forward_documents(stage, run, objective, global_batch);
  std::vector<ObjectiveMetric> terms = {{"loss", value.loss_sum}};
  terms.insert(terms.end(), value.metrics.begin(), value.metrics.end());
  add_metrics(terms, sums);
}

}  // namespace

StepSums Evaluator::sums_of(const std::vector<data::Bin>& bins, model::Decoder& decoder,
                            const model::Stage& stage, const parallel::Mesh& mesh,
                            const Objective& objective, parallel::Communicator& comm,
                            const std::function<bool()>& goes_on) const {
  const int64_t num_bins = std::ssize(bins), of_all_ranks = mesh.dp_size() * micro_batch_size_;
  const data::Dealer dealer{.cost = cost_, .size = micro_batch_size_, .parts = mesh.dp_size()};
  const data::Deal dealt = dealer.deal(val_.examples(), bins);
  GlobalBatch whole{.counts = data::counts_of(val_.examples(), bins)};
  whole.counts -= data::counts_among(val_.examples(), bins, lost_);
  const auto deal_of = [&](int64_t step) {
    return MicroBatchDeal{.micro_step = step, .size = micro_batch_size_, .dealt = &dealt};
  };
  if (objective.info().needs_mismatched) {
    const MismatchedBatches mismatched{
        .num_micro_batches = (num_bins + of_all_ranks - 1) / of_all_ranks,
        .micro_batch = [&](int64_t step) {
          return mismatched_batch_of(mesh, val_.examples(), bins, deal_of(step), max_seq_len_,
                                     lost_);
        }};
    whole.divergence = estimate_divergence(stage, objective, mismatched, is_pinned_, comm, mesh);
  }
  StepSums sums;
  if (objective.info().embeds()) {
    for (int64_t begin = 0; begin < num_bins && goes_on(); begin += retrieval_size_) {
      const auto end = std::min(begin + retrieval_size_, num_bins);
      add_embedded({bins.begin() + begin, bins.begin() + end}, stage, mesh, objective, comm, sums);
    }
    return sums;
  }
  for (int64_t step = 0; step * of_all_ranks < num_bins && goes_on(); ++step) {
    const data::Batch batch = micro_batch_of(mesh, val_.examples(), bins, deal_of(step), lost_);
    const model::PackedBatch packed =
        prepare_for(objective, batch, decoder, {.is_pinned = is_pinned_});
    add_terms(stage, packed, objective, whole, counts_correct_, sums);
    sums.num_terms += objective.count_terms(counts_of(batch));
  }
  return sums;
}

void Evaluator::add_embedded(const std::vector<data::Bin>& bins, const model::Stage& stage,
                             const parallel::Mesh& mesh, const Objective& objective,
                             parallel::Communicator& comm, StepSums& sums) const {
  const data::Dealer dealer{.cost = cost_, .size = micro_batch_size_, .parts = mesh.dp_size()};
  const data::Deal dealt = dealer.deal(val_.examples(), bins);
  const int64_t of_all_ranks = mesh.dp_size() * micro_batch_size_;
  const EmbeddedMicroBatches batches{
      .num_micro_batches = (std::ssize(bins) + of_all_ranks - 1) / of_all_ranks,
      .micro_batch =
          [&](int64_t step) {
            return micro_batch_of(mesh, val_.examples(), bins,
                                  {.micro_step = step, .size = micro_batch_size_, .dealt = &dealt},
                                  lost_);
          },
      .num_texts = data::counts_of(val_.examples(), bins).documents};
  const EmbeddedBatch embedded =
      contrast(embed_texts(stage, objective, batches, {}, is_pinned_, comm, mesh),
               text_numbers(val_.examples(), bins), objective.config(), /*with_gradients=*/false);
  for (int64_t step = 0; step < batches.num_micro_batches; ++step) {
    const data::Batch batch = batches.micro_batch(step);
    const ScoreValue value =
        share_of(embedded, batch.document_keys, objective.config().sequences());
    std::vector<ObjectiveMetric> terms = {{"loss", value.loss_sum}};
    terms.insert(terms.end(), value.metrics.begin(), value.metrics.end());
    add_metrics(terms, sums);
    sums.num_terms += objective.count_terms(counts_of(batch));
  }
}

namespace {

/// Of all ranks that count losses.   @param own undefined: this rank has counted none
std::vector<double> confusion_of_all(const at::Tensor& own, int64_t size,
                                     const parallel::Mesh& mesh, parallel::Communicator& comm) {
  std::vector<double> values(static_cast<size_t>(size));
  if (size == 0) return values;
  if (own.defined()) {
    const at::Tensor host = own.cpu().contiguous();
    std::copy_n(host.const_data_ptr<double>(), size, values.begin());
  }
  return parallel::counted_sums(comm, mesh, values);
}

}  // namespace

std::vector<std::string> Evaluator::set_names() const {
  std::vector<std::string> names;
  for (const Set& set : sets_)
    if (sets_.size() > 1) names.push_back(set.name);
  return names;
}

EvalResult Evaluator::run(model::Decoder& decoder, parallel::Strategy& strategy,
                          const Objective& objective, parallel::Communicator& comm,
                          const std::function<int()>& stop_exit_code) {
  const double start = monotonic_seconds();
  const model::Stage stage = stage_of(decoder, strategy);
  const parallel::Mesh& mesh = strategy.mesh();
  const int64_t stages = mesh.sizes().pp;
  StopAgreement stop(comm, stop_exit_code, stages > 1 ? kBatchesOfStage * stages : 1);
  const auto goes_on = [&] {
    comm.activity().set_work(Work::kEvaluating);  // each micro-batch is progress
    return stop.next() == 0;
  };
  std::vector<std::string> names;  // of the sums of a set, after their number of terms
  std::vector<double> values;      // of all sets
  at::Tensor confusion;
  int64_t num_label_tokens = 0;
  LostMedia lost(comm, bad_records_);
  for (const Set& set : sets_) {
    const std::vector<data::Bin> bins = set.plan.global_batch(0, 0);
    const MediaRecords records{.bins = bins,
                               .examples = val_.examples(),
                               .place_of = [&](int64_t example) { return val_.place_of(example); },
                               .lost = lost_};
    StepSums sums;
    do {
      sums = lost.note_during(decoder, records, [&] {
        return sums_of(bins, decoder, stage, mesh, objective, comm, goes_on);
      });
      if (stop.agreed() != 0) return {.stop_exit_code = stop.agreed()};
    } while (lost.agree(records, "the evaluation"));
    names = sums.metric_names;
    num_label_tokens += data::counts_of(val_.examples(), bins).label_tokens -
                        data::counts_among(val_.examples(), bins, lost_).label_tokens;
    values.push_back(sums.num_terms);
    for (const at::Tensor& metric : sums.metrics) values.push_back(metric.item<double>());
    if (sums.confusion.defined())
      confusion = confusion.defined() ? confusion + sums.confusion : sums.confusion;
  }
  const std::vector<double> by_set = parallel::counted_sums(comm, mesh, values);
  const size_t stride = names.size() + 1;
  std::vector<double> totals(stride);
  for (size_t i = 0; i < by_set.size(); ++i) totals[i % stride] += by_set[i];
  EvalResult result{.num_terms = totals[0], .num_labels = num_label_tokens};
  // Records that lost their labels may be all.
  const auto mean = [](double sum, double count) { return count > 0 ? sum / count : 0.0; };
  result.loss = mean(totals[1], totals[0]);
  for (size_t i = 1; i < names.size(); ++i)
    result.metrics.emplace_back(names[i], mean(totals[i + 1], totals[0]));
  const spec::ArchSpec& arch = decoder.arch();
  const int64_t num_labels = arch.score ? arch.score->num_labels : 0;
  result.confusion = confusion_of_all(confusion, objective.confusion_size(num_labels), mesh, comm);
  for (const auto& [name, value] : objective.metrics_of(result.confusion, num_labels))
    result.metrics.emplace_back(name, value);
  for (size_t set = 0; sets_.size() > 1 && set < sets_.size(); ++set) {
    result.losses.emplace_back(sets_[set].name,
                               mean(by_set[set * stride + 1], by_set[set * stride]));
  }
  result.seconds = monotonic_seconds() - start;
  return result;
}

}  // namespace sftrun::train
