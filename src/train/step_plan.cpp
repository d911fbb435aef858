#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/train/trainer.h"

namespace sftrun::train {

StepPlan::StepPlan(const data::BatchPlan& plan, double epochs, std::optional<int64_t> max_steps) {
  int64_t steps = 0;
  for (int64_t epoch = 0;; ++epoch) {
    const double left = epochs - static_cast<double>(epoch);
    if (max_steps ? steps >= *max_steps : left <= 0) break;
    const int64_t in_epoch = plan.steps_per_epoch(epoch);
    SFTRUN_CHECK(in_epoch > 0);
    steps_in_epoch_.push_back(in_epoch);
    const bool whole = max_steps || left >= 1;
    steps += whole ? in_epoch
                   : std::max<int64_t>(
                         1, static_cast<int64_t>(std::ceil(left * static_cast<double>(in_epoch))));
  }
  total_steps_ = max_steps ? *max_steps : steps;
}

StepPosition StepPlan::position(int64_t step) const {
  for (size_t epoch = 0; epoch < steps_in_epoch_.size(); ++epoch) {
    if (step < steps_in_epoch_[epoch])
      return {static_cast<int64_t>(epoch), step, steps_in_epoch_[epoch]};
    step -= steps_in_epoch_[epoch];
  }
  invariant_failed(__FILE__, __LINE__, "step < total_steps");
}

}  // namespace sftrun::train
