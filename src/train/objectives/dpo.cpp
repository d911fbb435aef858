#include <ATen/ATen.h>

#include <cmath>

#include "entries.h"
#include "pairs.h"

namespace sftrun::train {
namespace {

/// Beyond it exp is not representable: TRL clamps at 80, in fp32.
constexpr double kMaxExponent = 700;

/// f'(ratio) of arXiv:2309.16240, table 1.
at::Tensor score_of(const at::Tensor& log_ratios, const config::TrainConfig& config) {
  using enum config::FDivergence;
  constexpr double kSmall = 1e-6;
  const double exponent = config.f_alpha_divergence_coef - 1;
  switch (config.f_divergence) {
    case kReverseKl:
      return log_ratios;
    case kForwardKl:
      return 1 - at::exp(-log_ratios);
    case kJs:
      return std::log(2.0) + at::log_sigmoid(log_ratios);
    case kAlpha:
      if (std::abs(exponent) < kSmall) return log_ratios;  // the limit
      return (at::exp((exponent * log_ratios).clamp_max(kMaxExponent)) - 1) / exponent;
  }
  return {};
}

/// Without LD-DPO all labels are in the first tensor.
at::Tensor with_tails(const at::Tensor& sums, const at::Tensor& tails,
                      const config::TrainConfig& config) {
  return tails.defined() ? sums + config.ld_alpha.value_or(1) * tails : sums;
}

}  // namespace

ObjectiveTerms dpo(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals) {
  const at::Tensor policy = with_tails(sums.policy, sums.tail_policy, config),
                   reference = with_tails(sums.reference, sums.tail_reference, config);
  PairInputs inputs{.log_ratios = by_pair(policy - reference),
                    .lengths = by_pair(sums.lengths),
                    .beta = config.resolved_beta(),
                    .discopop_tau = config.discopop_tau};
  inputs.scores = {score_of(inputs.log_ratios.chosen, config),
                   score_of(inputs.log_ratios.rejected, config)};
  at::Tensor loss = at::zeros({}, policy.options());
  for (const config::LossShare& share : config.losses().shares) {
    inputs.smoothing = config.resolved_smoothing(share.loss);
    const at::Tensor of_loss = config::loss_info(share.loss).is_over_tokens
                                   ? chosen_cross_entropy(sums, totals)
                                   : sum_over_pairs(pair_losses(share.loss, inputs), sums);
    loss = loss + share.weight * of_loss;
  }
  const OfPair rewards = by_pair(config.resolved_beta() * (policy - reference));
  return {loss, pair_metrics(rewards, by_pair(policy))};
}

}  // namespace sftrun::train
