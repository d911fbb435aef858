#include <ATen/ATen.h>

#include "entries.h"
#include "pairs.h"
#include "sftrun/core/error.h"

/// Objectives on the scores of documents.
namespace sftrun::train {
namespace {

/// The class of each document [documents] int64; of those without one 0.
at::Tensor class_of(const DocumentScores& documents) {
  return documents.targets.select(1, 0).clamp_min(0).to(at::kLong);
}

/// [documents, labels] fp64: 1 where a document is of the class.
at::Tensor classes_of(const DocumentScores& documents) {
  const int64_t labels = documents.scores.size(1);
  const at::Tensor numbers =
      at::arange(labels, documents.scores.options().dtype(at::kDouble)).view({1, 1, -1});
  return (documents.targets.unsqueeze(2) == numbers).any(1).to(at::kDouble);
}

at::Tensor as_counts(const at::Tensor& documents) {
  return documents.to(at::kDouble);
}

/// A pair counts if one of its documents does, as in `sum_over_pairs`.
at::Tensor pairs_that_count(const at::Tensor& counts) {
  return counts.view({-1, 2}).any(1);
}

at::Tensor sum_where(const at::Tensor& counts, const at::Tensor& values) {
  return at::where(counts, values, 0.0).sum();
}

ScoreTerms no_terms(const DocumentScores& documents, const std::vector<const char*>& metrics) {
  ScoreTerms terms{.loss_sum = documents.scores.sum() * 0, .metrics = {}, .confusion = {}};
  for (const char* name : metrics)
    terms.metrics.push_back({name, at::zeros({}, documents.scores.options())});
  return terms;
}

/// Of each class, how many documents that have it (columns: true positives, false negatives) and that
/// have not (false positives, true negatives): [labels, 4] fp64.
at::Tensor counts_by_class(const at::Tensor& predicted, const at::Tensor& actual,
                           const at::Tensor& counts) {
  const at::Tensor of = counts.unsqueeze(1).to(at::kDouble), p = predicted.to(at::kDouble);
  return at::stack({(p * actual * of).sum(0), ((1 - p) * actual * of).sum(0),
                    (p * (1 - actual) * of).sum(0), ((1 - p) * (1 - actual) * of).sum(0)},
                   1);
}

/// [labels, labels] fp64: rows are the actual, columns the predicted classes.
at::Tensor confusion_of(const at::Tensor& predicted, const at::Tensor& actual,
                        const at::Tensor& counts, int64_t labels) {
  const at::Tensor places = at::masked_select(actual * labels + predicted, counts);
  return at::bincount(places, {}, labels * labels).view({labels, labels}).to(at::kDouble);
}

/// `counts_by_class` where each document has one class, without a value for each document and class.
at::Tensor counts_of_each_class(const at::Tensor& predicted, const at::Tensor& actual,
                                const at::Tensor& counts, int64_t labels) {
  const at::Tensor are_right = actual == predicted;
  const auto count = [&](const at::Tensor& classes, const at::Tensor& which) {
    return at::bincount(at::masked_select(classes, counts.logical_and(which)), {}, labels);
  };
  const at::Tensor hits = count(actual, are_right), missed = count(actual, ~are_right),
                   wrong = count(predicted, ~are_right);
  return at::stack({hits, missed, wrong, counts.sum() - hits - missed - wrong}, 1).to(at::kDouble);
}

ScoreTerms single_label(const DocumentScores& documents) {
  const at::Tensor actual = class_of(documents), predicted = documents.scores.argmax(1);
  const int64_t labels = documents.scores.size(1);
  const at::Tensor losses =
      at::cross_entropy_loss(documents.scores, actual, {}, at::Reduction::None);
  return {.loss_sum = sum_where(documents.counts, losses),
          .metrics = {{"accuracy", sum_where(documents.counts, as_counts(actual == predicted))}},
          .confusion = documents.wants_confusion
                           ? (labels > kMaxConfusion ? counts_of_each_class : confusion_of)(
                                 predicted, actual, documents.counts, labels)
                           : at::Tensor()};
}

/// transformers' BCEWithLogitsLoss is a mean over classes, too.
ScoreTerms multi_label(const DocumentScores& documents) {
  const at::Tensor actual = classes_of(documents), predicted = documents.scores > 0;
  const at::Tensor losses =
      at::binary_cross_entropy_with_logits(documents.scores, actual, {}, {}, at::Reduction::None)
          .mean(1);
  const at::Tensor are_right = (predicted == (actual > 0)).all(1);
  return {.loss_sum = sum_where(documents.counts, losses),
          .metrics = {{"accuracy", sum_where(documents.counts, as_counts(are_right))}},
          .confusion = documents.wants_confusion
                           ? counts_by_class(predicted, actual, documents.counts)
                           : at::Tensor()};
}

}  // namespace

ScoreTerms reward(const DocumentScores& documents, const config::TrainConfig& config) {
  if (documents.scores.size(0) == 0)
    return no_terms(documents, {"accuracy", "margin", "mean_reward"});
  SFTRUN_CHECK_EQ(documents.scores.size(1), int64_t{1});
  const OfPair rewards = by_pair(documents.scores.squeeze(1));
  const at::Tensor counts = pairs_that_count(documents.counts), difference = rewards.difference();
  at::Tensor losses = -at::log_sigmoid(difference - by_pair(documents.targets.select(1, 0)).chosen);
  if (config.center_rewards_coefficient > 0)
    losses =
        losses + config.center_rewards_coefficient * (rewards.chosen + rewards.rejected).square();
  return {.loss_sum = sum_where(counts, losses),
          .metrics = {{"accuracy", sum_where(counts, as_counts(rewards.chosen > rewards.rejected))},
                      {"margin", sum_where(counts, difference)},
                      {"mean_reward", sum_where(counts, (rewards.chosen + rewards.rejected) / 2)}},
          .confusion = {}};
}

ScoreTerms classify(const DocumentScores& documents, const config::TrainConfig& config) {
  if (documents.scores.size(0) == 0) return no_terms(documents, {"accuracy"});
  return config.problem_type == config::ProblemType::kMultiLabel ? multi_label(documents)
                                                                 : single_label(documents);
}

}  // namespace sftrun::train
