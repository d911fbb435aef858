#include "pairs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"

namespace sftrun::train {
namespace {

/// d(reward) / d(log p) of each document: [documents] fp64.
at::Tensor reward_factors(const DocumentSums& sums, const RewardScale& scale) {
  const at::Tensor beta = at::full_like(sums.policy, scale.beta);
  return scale.per_token ? beta / sums.lengths.clamp_min(1) : beta;  // no labels: log p is 0
}

at::Tensor log_ratios(const DocumentSums& sums) {
  return sums.reference.defined() ? sums.policy - sums.reference : sums.policy;
}

}  // namespace

ObjectiveValue value_of_pairs(const DocumentSums& sums, const RewardScale& scale,
                              const std::function<PairLoss(const at::Tensor& margins)>& loss) {
  const at::NoGradGuard no_grad;
  SFTRUN_CHECK(sums.policy.size(0) % 2 == 0);
  const auto pairs = [](const at::Tensor& documents) { return documents.view({-1, 2}); };
  const at::Tensor log_p = pairs(sums.policy);
  const at::Tensor factors = reward_factors(sums, scale);
  const at::Tensor rewards = pairs(log_ratios(sums) * factors);  // [pairs, 2]
  const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  const at::Tensor margins = chosen - rejected;
  PairLoss of_pairs = loss(margins);
  // A pair that lost its labels (data::make_batch) is no term.
  if (sums.lengths.defined())
    of_pairs.losses = at::where(pairs(sums.lengths).sum(1) > 0, of_pairs.losses, 0.0);
  const at::Tensor slopes = at::stack({-of_pairs.slopes, of_pairs.slopes}, 1).flatten();
  return {.loss_sum = of_pairs.losses.sum(),
          .weights = slopes * factors,
          .metrics = {{"rewards/chosen", chosen.sum()},
                      {"rewards/rejected", rejected.sum()},
                      {"rewards/accuracies", (chosen > rejected).sum().to(at::kDouble)},
                      {"rewards/margins", margins.sum()},
                      {"logps/chosen", log_p.select(1, 0).sum()},
                      {"logps/rejected", log_p.select(1, 1).sum()}}};
}

}  // namespace sftrun::train
