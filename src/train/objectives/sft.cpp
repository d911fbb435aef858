#include "sft.h"

#include <ATen/ATen.h>

namespace sftrun::train {

ObjectiveValue SftObjective::evaluate(const DocumentSums& sums) const {
  return {.loss_sum = sums.policy.sum().neg(), .weights = at::ones_like(sums.policy)};
}

}  // namespace sftrun::train
