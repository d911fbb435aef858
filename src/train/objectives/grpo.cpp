#include <ATen/ATen.h>

#include <algorithm>

#include "entries.h"
#include "rows.h"
#include "sftrun/core/error.h"

/// Group relative policy optimization (arXiv:2402.03300) and its relatives, on answers that were
/// sampled before: trl/trainer/grpo_trainer.py, with divisors over the global batch.
namespace sftrun::train {
namespace {

using config::PreferenceLoss;

/// Log p of the model that sampled. Where it is unknown the model still is that one.
at::Tensor old_logps(const SampledRows& rows) {
  const at::Tensor now = rows.policy.detach();
  return rows.old_logps.defined() ? at::where(rows.old_logps.isnan(), now, rows.old_logps) : now;
}

/// Of the model to the one that sampled, for each row. The ratio of an answer is the geometric mean of
/// its tokens' (GSPO, arXiv:2507.18071), and its gradient reaches every token.
at::Tensor ratios_of(const SampledRows& rows, config::ImportanceLevel level,
                     const RowSums& by_answer) {
  const at::Tensor log_ratios = rows.policy - old_logps(rows);
  return at::exp(level == config::ImportanceLevel::kSequence
                     ? by_answer.to_rows(by_answer.means(log_ratios))
                     : log_ratios);
}

PreferenceLoss loss_type(const config::TrainConfig& config) {
  return config.losses().shares.front().loss;
}

/// What is added to 1 for the upper bound of ratios; of CISPO the bound itself.
double highest(const config::TrainConfig& config) {
  const bool is_cispo = loss_type(config) == PreferenceLoss::kCispo;
  return config.epsilon_high.value_or(is_cispo ? config::kCispoHighest : config.epsilon);
}

/// -min(ratio * A, clip(ratio) * A).
at::Tensor clipped_terms(const at::Tensor& ratios, const at::Tensor& advantages,
                         const config::TrainConfig& config) {
  const at::Tensor clipped = ratios.clamp(1 - config.epsilon, 1 + highest(config));
  const at::Tensor bounded = config.delta ? ratios.clamp_max(*config.delta) : ratios;
  return -at::minimum(bounded * advantages, clipped * advantages);
}

/// CISPO (arXiv:2506.13585): the clipped ratio weighs log p, and has no gradient itself.
at::Tensor cispo_terms(const at::Tensor& ratios, const at::Tensor& advantages,
                       const at::Tensor& policy, const config::TrainConfig& config) {
  return -ratios.clamp_max(highest(config)).detach() * advantages * policy;
}

/// How much more likely the model found a token before training than the engine that sampled it did;
/// 1 where the engine's value is unknown.
at::Tensor sampling_ratios(const SampledRows& rows, const RowSums& by_answer,
                           const config::TrainConfig& config) {
  using enum config::SamplingCorrection;
  const config::SamplingCorrection how = config.sampling_correction;
  if (!rows.sampled_logps.defined()) return at::ones_like(rows.policy);
  at::Tensor differences = (old_logps(rows) - rows.sampled_logps).nan_to_num(0);
  if (how == kSequenceTruncate || how == kSequenceMask)
    differences = by_answer.to_rows(by_answer.sums(differences));
  const at::Tensor ratios = at::exp(differences);
  const double most = config.sampling_correction_max;
  if (how == kTokenTruncate || how == kSequenceTruncate) return ratios.clamp_max(most);
  return ratios.masked_fill(ratios > most, 0.0);
}

/// k3 of http://joschu.net/blog/kl-approx.html: an estimate that is never negative.
at::Tensor kl_terms(const at::Tensor& policy, const at::Tensor& reference) {
  const at::Tensor difference = reference - policy;
  return at::exp(difference) - difference - 1;
}

/// What the sum of terms of this micro-batch is divided by, relative to the number of answers, by
/// which all objectives on answers are divided.
double answers_per(double divisor, const BatchCounts& totals) {
  return static_cast<double>(totals.documents) / std::max(1.0, divisor);
}

double counted_tokens(const BatchCounts& totals, const config::TrainConfig& config) {
  const int64_t left_out = config.mask_truncated_completions ? totals.cut_short_labels : 0;
  return static_cast<double>(totals.label_tokens - left_out);
}

/// The sum over a micro-batch, of which the mean over the answers of the global batch is the loss.
at::Tensor loss_of(const at::Tensor& terms, const RowSums& by_answer, const BatchCounts& totals,
                   const config::TrainConfig& config) {
  switch (loss_type(config)) {
    case PreferenceLoss::kGrpo:  // a mean over each answer
      return by_answer.means(terms).sum();
    case PreferenceLoss::kDrGrpo:  // a constant length (arXiv:2503.20783)
      return terms.sum() / static_cast<double>(config.max_completion_length);
    default:  // a mean over tokens (DAPO, arXiv:2503.14476)
      return terms.sum() * answers_per(counted_tokens(totals, config), totals);
  }
}

/// Means over the tokens that count, by TRL's names.
class TokenMetrics {
 public:
  TokenMetrics(double answers_per_token, std::vector<ObjectiveMetric>& metrics)
      : answers_per_token_(answers_per_token), metrics_(metrics) {}
  void add(const char* name, const at::Tensor& of_rows) {
    metrics_.push_back({name, of_rows.sum() * answers_per_token_});
  }

 private:
  double answers_per_token_;
  std::vector<ObjectiveMetric>& metrics_;
};

/// Shares of ratios [rows] that are clipped, so that their rows have no gradient.
/// @param add (name, 0 or 1 for each row)
template <class Add>
void add_clipped(const at::Tensor& ratios, const at::Tensor& advantages,
                 const config::TrainConfig& config, const Add& add) {
  const double high = highest(config);
  const auto where = [](const at::Tensor& out, const at::Tensor& side) {
    return out.logical_and(side).to(at::kDouble);
  };
  if (loss_type(config) == PreferenceLoss::kCispo)
    return add("cispo_clip_ratio", where(ratios > high, advantages > 0));
  const at::Tensor bounded = config.delta ? ratios.clamp_max(*config.delta) : ratios;
  const at::Tensor low = where(bounded < 1 - config.epsilon, advantages < 0),
                   above = where(bounded > 1 + high, advantages > 0);
  add("clip_ratio/low_mean", low);
  add("clip_ratio/high_mean", above);
  add("clip_ratio/region_mean", low + above);
}

}  // namespace

ObjectiveTerms grpo(const DocumentSums& sums, const config::TrainConfig& config,
                    const BatchCounts& totals) {
  const SampledRows& rows = sums.rows;
  SFTRUN_CHECK(rows.policy.defined() && sums.advantages.defined());
  const RowSums by_answer(rows.documents, sums.lengths);
  // Answers that were cut short are left out if asked for; their tokens still have a row.
  const at::Tensor counted = config.mask_truncated_completions
                                 ? 1 - sums.is_cut_short.to(at::kDouble)
                                 : at::ones_like(sums.lengths);
  const at::Tensor counts = by_answer.to_rows(counted) * rows.is_label,
                   advantages = by_answer.to_rows(sums.advantages);
  const at::Tensor ratios = ratios_of(rows, config.importance_sampling_level, by_answer);
  at::Tensor terms = loss_type(config) == PreferenceLoss::kCispo
                         ? cispo_terms(ratios, advantages, rows.policy, config)
                         : clipped_terms(ratios, advantages, config);
  ObjectiveTerms result;
  TokenMetrics metrics(answers_per(counted_tokens(totals, config), totals), result.metrics);
  if (config.sampling_correction != config::SamplingCorrection::kOff) {
    const at::Tensor of_sampling = sampling_ratios(rows, by_answer, config);
    terms = terms * of_sampling;
    metrics.add("sampling/importance_sampling_ratio/mean", of_sampling * counts);
    // Also of a micro-batch without the engine's values: all ranks report the same metrics.
    const at::Tensor difference = rows.sampled_logps.defined()
                                      ? (old_logps(rows) - rows.sampled_logps).nan_to_num(0).abs()
                                      : at::zeros_like(counts);
    metrics.add("sampling/sampling_logp_difference/mean", difference * counts);
  }
  if (rows.reference.defined()) {
    const at::Tensor kl = kl_terms(rows.policy, rows.reference);
    terms = terms + config.resolved_beta() * kl;
    metrics.add("kl", kl * counts);
  }
  result.loss_sum = loss_of(terms * counts, by_answer, totals, config);
  const bool of_answers = config.importance_sampling_level == config::ImportanceLevel::kSequence;
  add_clipped(ratios.detach(), advantages, config,
              [&](const char* name, const at::Tensor& clipped) {
                if (of_answers)
                  result.metrics.push_back({name, by_answer.means(clipped * counts).sum()});
                else
                  metrics.add(name, clipped * counts);
              });
  result.metrics.push_back({"completions/mean_length", sums.lengths.sum()});
  result.metrics.push_back({"completions/clipped_ratio", sums.is_cut_short.sum(at::kDouble)});
  result.metrics.push_back({"reward", sums.scores.sum()});
  return result;
}

}  // namespace sftrun::train
