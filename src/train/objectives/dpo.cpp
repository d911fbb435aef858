#include "dpo.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"

namespace sftrun::train {

ObjectiveValue DpoObjective::evaluate(const DocumentSums& sums) const {
  const at::NoGradGuard no_grad;
  SFTRUN_CHECK(sums.policy.size(0) % 2 == 0);
  const auto pairs = [](const at::Tensor& documents) { return documents.view({-1, 2}); };
  const at::Tensor log_p = pairs(sums.policy);
  const at::Tensor rewards = (log_p - pairs(sums.reference)) * beta_;  // [pairs, 2]
  const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  const at::Tensor margins = chosen - rejected;
  // d(-log sigmoid(m)) / dm = -sigmoid(-m), with dm = beta (dc - dr).
  const at::Tensor weight = at::sigmoid(-margins) * beta_;
  return {.loss_sum = -at::log_sigmoid(margins).sum(),
          .weights = at::stack({weight, -weight}, 1).flatten(),
          .metrics = {{"rewards/chosen", chosen.sum()},
                      {"rewards/rejected", rejected.sum()},
                      {"rewards/accuracies", (chosen > rejected).sum().to(at::kDouble)},
                      {"rewards/margins", margins.sum()},
                      {"logps/chosen", log_p.select(1, 0).sum()},
                      {"logps/rejected", log_p.select(1, 1).sum()}}};
}

}  // namespace sftrun::train
