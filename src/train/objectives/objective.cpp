#include "sftrun/train/objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "entries.h"
#include "rows.h"
#include "sftrun/core/error.h"
#include "sftrun/data/example.h"

namespace sftrun::train {

namespace {

/// `Objective::evaluate` of each row of config::kObjectives; null: it is not called.
using Evaluate = ObjectiveTerms (*)(const DocumentSums& sums, const config::TrainConfig& config,
                                    const BatchCounts& totals);
// to_array: a missing entry is an error of the compiler.
constexpr std::array<Evaluate, config::kObjectives.size()> kEvaluate = std::to_array<Evaluate>(
    {nullptr, dpo, dpo, cpo, simpo, orpo, kto, nullptr, nullptr, nullptr, grpo, nullptr});

/// The same of rows with a head of scores.
struct ScoreEntry {
  config::Objective objective;
  ScoreTerms (*evaluate)(const DocumentScores& documents, const config::TrainConfig& config);
};
constexpr auto kScoreEntries = std::to_array<ScoreEntry>(
    {{config::Objective::kReward, reward}, {config::Objective::kClassify, classify}});

constexpr const ScoreEntry* score_entry(config::Objective objective) {
  for (const ScoreEntry& entry : kScoreEntries)
    if (entry.objective == objective) return &entry;
  return nullptr;
}

static_assert([] {
  for (size_t i = 0; i < kEvaluate.size(); ++i)
    if (config::kObjectives[i].needs_sums() != (kEvaluate[i] != nullptr) ||
        config::kObjectives[i].has_scores() !=
            (score_entry(config::kObjectives[i].objective) != nullptr))
      return false;
  return true;
}());

int64_t documents_of(const model::PackedBatch& batch) {
  return batch.num_tokens() == 0 ? 0 : static_cast<int64_t>(batch.context.cu_seqlens.size()) - 1;
}

/// Which labelled rows [N] are of the kind; undefined: all.
at::Tensor rows_of_kind(const model::PackedBatch& batch, data::LabelKind kind) {
  if (!batch.label_kinds.defined()) return {};
  return batch.label_kinds == static_cast<int64_t>(kind);
}

/// The sums whose gradients are the weights.
constexpr auto kTrained = std::to_array<at::Tensor DocumentSums::*>(
    {&DocumentSums::policy, &DocumentSums::tail_policy, &DocumentSums::prompt_policy});
constexpr auto kWeights = std::to_array<at::Tensor DocumentWeights::*>(
    {&DocumentWeights::answers, &DocumentWeights::tails, &DocumentWeights::prompts});
static_assert(kTrained.size() == kWeights.size());

/// Gradients of a loss that is a function of single rows.
DocumentWeights weights_of_rows(const at::Tensor& loss, const at::Tensor& policy) {
  const at::Tensor gradient = torch::autograd::grad({loss}, {policy}, /*grad_outputs=*/{},
                                                    /*retain_graph=*/{}, /*create_graph=*/false,
                                                    /*allow_unused=*/true)[0];
  return {.rows = gradient.defined() ? -gradient : at::zeros_like(policy)};
}

/// Gradients of a loss that may not depend on all of the sums.
DocumentWeights weights_of(const at::Tensor& loss, const DocumentSums& leaves) {
  if (leaves.rows.policy.defined()) return weights_of_rows(loss, leaves.rows.policy);
  std::vector<at::Tensor> inputs;
  for (const auto member : kTrained)
    if ((leaves.*member).defined()) inputs.push_back(leaves.*member);
  const std::vector<at::Tensor> gradients = torch::autograd::grad(
      {loss}, inputs, /*grad_outputs=*/{}, /*retain_graph=*/{}, /*create_graph=*/false,
      /*allow_unused=*/true);
  DocumentWeights weights;
  for (size_t i = 0, next = 0; i < kTrained.size(); ++i) {
    if (!(leaves.*kTrained[i]).defined()) continue;
    const at::Tensor& gradient = gradients[next];
    // The head multiplies gradients of -log p.
    weights.*kWeights[i] = gradient.defined() ? -gradient : at::zeros_like(inputs[next]);
    ++next;
  }
  return weights;
}

}  // namespace

double Objective::count_terms(const BatchCounts& counts) const {
  return info().terms == config::LossTerms::kLabelTokens
             ? counts.label_weight
             : static_cast<double>(counts.documents / config_.sequences());
}

std::optional<layers::Distillation> Objective::distillation() const {
  if (!info().needs_teacher) return std::nullopt;
  return layers::Distillation{
      .alpha = config_.kd_alpha, .beta = config_.kd_beta, .temperature = config_.kd_temperature};
}

std::optional<model::PoolingRows> Objective::pooling() const {
  if (!info().embeds()) return std::nullopt;
  return config_.pooling == config::Pooling::kMean ? model::PoolingRows::kAll
                                                   : model::PoolingRows::kLast;
}

model::LabelKinds Objective::label_kinds() const {
  return {.tails = info().reads("train.ld_alpha") && config_.ld_alpha.value_or(1) != 1,
          .prompts_of_chosen = info().labels_prompts};
}

ObjectiveValue Objective::evaluate(const DocumentSums& sums, const BatchCounts& totals) const {
  SFTRUN_CHECK(info().needs_sums());
  const at::AutoGradMode with_gradients(true);
  DocumentSums leaves = sums;
  for (const auto member : kTrained)
    if ((sums.*member).defined()) leaves.*member = (sums.*member).detach().requires_grad_();
  if (sums.rows.policy.defined()) leaves.rows.policy = sums.rows.policy.detach().requires_grad_();
  ObjectiveTerms terms = kEvaluate[static_cast<size_t>(info().objective)](leaves, config_, totals);
  ObjectiveValue value{.loss_sum = terms.loss_sum.detach(),
                       .weights = weights_of(terms.loss_sum, leaves)};
  for (ObjectiveMetric& metric : terms.metrics)
    value.metrics.push_back({std::move(metric.name), metric.sum.detach()});
  return value;
}

ScoreValue Objective::evaluate_scores(const at::Tensor& scores, const model::PackedBatch& batch,
                                      bool wants_confusion) const {
  SFTRUN_CHECK(info().has_scores());
  const at::AutoGradMode with_gradients(true);
  const at::Tensor leaf = scores.detach().to(at::kDouble).requires_grad_();
  const ScoreTerms terms = score_entry(info().objective)
                               ->evaluate({.scores = leaf,
                                           .counts = batch.counts,
                                           .targets = batch.targets,
                                           .wants_confusion = wants_confusion},
                                          config_);
  ScoreValue value{.loss_sum = terms.loss_sum.detach(),
                   .gradient = torch::autograd::grad({terms.loss_sum}, {leaf})[0].to(at::kFloat),
                   .metrics = {},
                   .confusion = terms.confusion};
  for (const ObjectiveMetric& metric : terms.metrics)
    value.metrics.push_back({metric.name, metric.sum.detach()});
  return value;
}

namespace {

struct ClassCounts {
  double hits = 0, missed = 0, wrong = 0;
  double f1() const {
    const double all = 2 * hits + missed + wrong;
    return all == 0 ? 0 : 2 * hits / all;
  }
};

}  // namespace

int64_t Objective::confusion_size(int64_t num_labels) const {
  if (info().head != config::HeadKind::kClasses) return 0;
  constexpr int64_t kCounts = 4;
  const bool has_counts =
      config_.problem_type == config::ProblemType::kMultiLabel || num_labels > kMaxConfusion;
  return num_labels * (has_counts ? kCounts : num_labels);
}

std::vector<std::pair<std::string, double>> Objective::metrics_of(
    const std::vector<double>& confusion, int64_t num_labels) const {
  if (confusion.empty()) return {};
  const bool has_several = config_.problem_type == config::ProblemType::kMultiLabel,
             has_counts = has_several || num_labels > kMaxConfusion;
  const auto labels = static_cast<size_t>(num_labels), width = confusion.size() / labels;
  std::vector<ClassCounts> counts(labels);
  for (size_t row = 0; row < labels; ++row) {
    const double* of = &confusion[row * width];
    if (has_counts) counts[row] = {of[0], of[1], of[2]};
    for (size_t column = 0; column < labels && !has_counts; ++column) {
      (row == column ? counts[row].hits : counts[row].missed) += of[column];
      if (row != column) counts[column].wrong += of[column];
    }
  }
  ClassCounts total;
  double sum = 0, classes = 0;
  for (const ClassCounts& of : counts) {
    total.hits += of.hits;
    total.missed += of.missed;
    total.wrong += of.wrong;
    // Where a text has one class, those that neither texts nor predictions have are left out.
    if (!has_several && of.hits + of.missed + of.wrong == 0) continue;
    sum += of.f1();
    ++classes;
  }
  return {{"f1_macro", classes == 0 ? 0 : sum / classes}, {"f1_micro", total.f1()}};
}

at::Tensor sums_by_document(const at::Tensor& losses, const model::PackedBatch& batch,
                            data::LabelKind kind) {
  const at::NoGradGuard no_grad;
  at::Tensor log_p = losses.to(at::kDouble).neg_();
  if (const at::Tensor rows = rows_of_kind(batch, kind); rows.defined())
    log_p = at::where(rows, log_p, 0.0);
  return sums_of_rows(log_p, batch.label_documents, documents_of(batch));
}

at::Tensor lengths_by_document(const model::PackedBatch& batch) {
  at::Tensor counts = batch.labels.ne(data::kIgnoreIndex);
  if (batch.label_kinds.defined())
    counts =
        counts.logical_and(batch.label_kinds != static_cast<int64_t>(data::LabelKind::kPrompt));
  return sums_of_rows(counts.to(at::kDouble), batch.label_documents, documents_of(batch));
}

at::Tensor row_factors(const DocumentWeights& weights, const model::PackedBatch& batch) {
  if (weights.rows.defined()) return weights.rows.to(at::kFloat);
  const auto of = [&](const at::Tensor& documents) {
    return documents.index_select(0, batch.label_documents).to(at::kFloat);
  };
  at::Tensor factors = of(weights.answers);
  if (weights.tails.defined())
    factors = at::where(rows_of_kind(batch, data::LabelKind::kTail), of(weights.tails), factors);
  if (weights.prompts.defined())
    factors =
        at::where(rows_of_kind(batch, data::LabelKind::kPrompt), of(weights.prompts), factors);
  return factors;
}

}  // namespace sftrun::train
