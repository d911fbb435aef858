#include "pairs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"

namespace sftrun::train {

ObjectiveValue value_of_pairs(const DocumentSums& sums, double beta,
                              PairLoss (*loss)(const at::Tensor& margins)) {
  const at::NoGradGuard no_grad;
  SFTRUN_CHECK(sums.policy.size(0) % 2 == 0);
  const auto pairs = [](const at::Tensor& documents) { return documents.view({-1, 2}); };
  const at::Tensor log_p = pairs(sums.policy);
  const at::Tensor rewards = (log_p - pairs(sums.reference)) * beta;  // [pairs, 2]
  const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  const at::Tensor margins = chosen - rejected;
  const PairLoss of_pairs = loss(margins);
  const at::Tensor weight = -of_pairs.slopes * beta;  // with dm = beta (dc - dr)
  return {.loss_sum = of_pairs.losses.sum(),
          .weights = at::stack({weight, -weight}, 1).flatten(),
          .metrics = {{"rewards/chosen", chosen.sum()},
                      {"rewards/rejected", rejected.sum()},
                      {"rewards/accuracies", (chosen > rejected).sum().to(at::kDouble)},
                      {"rewards/margins", margins.sum()},
                      {"logps/chosen", log_p.select(1, 0).sum()},
                      {"logps/rejected", log_p.select(1, 1).sum()}}};
}

}  // namespace sftrun::train
