#include <ATen/ATen.h>

#include <algorithm>

#include "entries.h"

namespace sftrun::train {
namespace {

/// A sum over some of the examples, for a metric that is a mean over these: metrics are divided by
/// the number of all.
at::Tensor share_of(const at::Tensor& sum, int64_t all, int64_t some) {
  return sum * (static_cast<double>(all) / static_cast<double>(std::max<int64_t>(1, some)));
}

}  // namespace

ObjectiveTerms kto(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals) {
  const at::Tensor log_ratios = sums.policy - sums.reference, distance = sums.divergence;
  const at::Tensor desirable = config.resolved_beta() * (log_ratios - distance);
  const at::Tensor losses =
      at::where(sums.is_desirable, config.desirable_weight * at::sigmoid(-desirable),
                config.undesirable_weight * at::sigmoid(desirable));
  const at::Tensor counts = sums.lengths > 0;  // else it lost its labels
  const auto mean_of = [&](const at::Tensor& values, bool is_desirable) {
    const at::Tensor which = is_desirable ? sums.is_desirable : sums.is_desirable.logical_not();
    return share_of(at::where(which, values, 0.0).sum(), totals.documents,
                    is_desirable ? totals.desirable : totals.documents - totals.desirable);
  };
  const at::Tensor rewards = config.resolved_beta() * log_ratios;
  const at::Tensor chosen = mean_of(rewards, true), rejected = mean_of(rewards, false);
  return {at::where(counts, losses, 0.0).sum(),
          {{"rewards/chosen", chosen},
           {"rewards/rejected", rejected},
           {"rewards/margins", chosen - rejected},
           {"logps/chosen", mean_of(sums.policy, true)},
           {"logps/rejected", mean_of(sums.policy, false)},
           {"kl", distance * counts.sum()}}};
}

}  // namespace sftrun::train
