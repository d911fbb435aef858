#include <ATen/ATen.h>

#include <algorithm>

#include "entries.h"
#include "pairs.h"

/// Preference training without a reference model.
namespace sftrun::train {
namespace {

ObjectiveTerms with_cross_entropy(const at::Tensor& losses, const OfPair& log_p,
                                  const DocumentSums& sums, const config::TrainConfig& config,
                                  const BatchCounts& totals) {
  const at::Tensor cross_entropy = chosen_cross_entropy(sums, totals);
  const double weight = config.resolved_cpo_alpha();
  at::Tensor loss = sum_over_pairs(losses, sums);
  if (weight != 0) loss = loss + weight * cross_entropy;
  ObjectiveTerms terms{loss, pair_metrics({config.resolved_beta() * log_p.chosen,
                                           config.resolved_beta() * log_p.rejected},
                                          log_p)};
  terms.metrics.push_back({"nll_loss", cross_entropy});
  return terms;
}

/// log(1 - exp(x)), for x < 0; from -log(2) on the other form is exact.
at::Tensor log1m_exp(const at::Tensor& x) {
  constexpr double kLog2 = 0.6931471805599453;
  // Each branch also has a gradient where it is not chosen: no infinity may be in it.
  const at::Tensor low = x.clamp_max(-kLog2), high = x.clamp_min(-kLog2);
  return at::where(x < -kLog2, at::log1p(-at::exp(low)), at::log(-at::expm1(high)));
}

/// Where the model is certain of an answer, and where one has no labels, the odds are infinite.
constexpr double kMostCertain = -1e-12;

}  // namespace

ObjectiveTerms cpo(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals) {
  const OfPair log_p = by_pair(sums.policy), lengths = by_pair(sums.lengths);
  PairInputs inputs{
      .log_ratios = log_p, .scores = log_p, .lengths = lengths, .beta = config.resolved_beta()};
  at::Tensor losses = at::zeros_like(log_p.chosen);
  bool is_per_token = true;
  for (const config::LossShare& share : config.losses().shares) {
    inputs.smoothing = config.resolved_smoothing(share.loss);
    losses = losses + share.weight * pair_losses(share.loss, inputs);
    is_per_token = is_per_token && config::loss_info(share.loss).is_per_token;
  }
  return with_cross_entropy(losses, is_per_token ? per_label(log_p, lengths) : log_p, sums, config,
                            totals);
}

ObjectiveTerms simpo(const DocumentSums& sums, const config::TrainConfig& config,
                     const BatchCounts& totals) {
  const OfPair log_p = per_label(by_pair(sums.policy), by_pair(sums.lengths));
  const at::Tensor margins = config.resolved_beta() * log_p.difference() - config.simpo_gamma;
  const at::Tensor losses = smoothed_log_sigmoid_loss(margins, config.label_smoothing.value_or(0));
  return with_cross_entropy(losses, log_p, sums, config, totals);
}

ObjectiveTerms orpo(const DocumentSums& sums, const config::TrainConfig& config,
                    const BatchCounts& totals) {
  const OfPair log_p = per_label(by_pair(sums.policy), by_pair(sums.lengths));
  const OfPair p{log_p.chosen.clamp_max(kMostCertain), log_p.rejected.clamp_max(kMostCertain)};
  const at::Tensor log_odds = p.difference() - (log1m_exp(p.chosen) - log1m_exp(p.rejected));
  const at::Tensor ratios = at::log_sigmoid(log_odds);
  const double pairs_per_token =
      static_cast<double>(totals.documents) / 2 /
      static_cast<double>(std::max<int64_t>(1, totals.chosen_sequence_labels));
  const at::Tensor cross_entropy =
      -(by_pair(sums.policy).chosen.sum() + by_pair(sums.prompt_policy).chosen.sum()) *
      pairs_per_token;
  ObjectiveTerms terms{
      cross_entropy - config.resolved_beta() * sum_over_pairs(ratios, sums),
      pair_metrics({config.resolved_beta() * log_p.chosen, config.resolved_beta() * log_p.rejected},
                   log_p)};
  terms.metrics.push_back({"nll_loss", cross_entropy});
  terms.metrics.push_back({"log_odds_ratio", sum_over_pairs(ratios, sums)});
  terms.metrics.push_back({"log_odds_chosen", sum_over_pairs(log_odds, sums)});
  return terms;
}

}  // namespace sftrun::train
