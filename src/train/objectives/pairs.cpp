#include "pairs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::train {

at::Tensor OfPair::difference() const {
  return chosen - rejected;
}

OfPair by_pair(const at::Tensor& documents) {
  SFTRUN_CHECK(documents.size(0) % 2 == 0);
  const at::Tensor pairs = documents.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

OfPair per_label(const OfPair& sums, const OfPair& lengths) {
  return {sums.chosen / lengths.chosen.clamp_min(1), sums.rejected / lengths.rejected.clamp_min(1)};
}

at::Tensor sum_over_pairs(const at::Tensor& losses, const DocumentSums& sums) {
  return at::where(sums.lengths.view({-1, 2}).sum(1) > 0, losses, 0.0).sum();
}

at::Tensor chosen_cross_entropy(const DocumentSums& sums, const BatchCounts& totals) {
  const double pairs_per_label = static_cast<double>(totals.documents) / 2 /
                                 static_cast<double>(std::max<int64_t>(1, totals.chosen_labels));
  at::Tensor sum = -by_pair(sums.policy).chosen.sum();
  if (sums.tail_policy.defined()) sum = sum - by_pair(sums.tail_policy).chosen.sum();
  return sum * pairs_per_label;
}

std::vector<ObjectiveMetric> pair_metrics(const OfPair& rewards, const OfPair& log_p) {
  return {{"rewards/chosen", rewards.chosen.sum()},
          {"rewards/rejected", rewards.rejected.sum()},
          {"rewards/accuracies", (rewards.chosen > rewards.rejected).sum().to(at::kDouble)},
          {"rewards/margins", rewards.difference().sum()},
          {"logps/chosen", log_p.chosen.sum()},
          {"logps/rejected", log_p.rejected.sum()}};
}

}  // namespace sftrun::train
