#include "sftrun/train/loss_scale.h"

namespace sftrun::train {

bool LossScale::accept(bool gradients_are_finite) {
  constexpr double kGrowth = 2, kBackoff = 0.5;
  constexpr int64_t kGrowthInterval = 2000;
  if (!is_active_) return true;
  if (!gradients_are_finite) {
    state_.value *= kBackoff;
    state_.finite_steps = 0;
    ++state_.skipped_steps;
    return false;
  }
  if (++state_.finite_steps == kGrowthInterval) {
    state_.value *= kGrowth;
    state_.finite_steps = 0;
  }
  return true;
}

}  // namespace sftrun::train
