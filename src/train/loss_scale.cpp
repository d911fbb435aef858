#include "sftrun/train/loss_scale.h"

#include <cmath>

namespace sftrun::train {

bool LossScale::is_possible(const State& state, int64_t steps) {
  int exponent = 0;
  const bool is_power_of_two =
      std::isfinite(state.value) && std::frexp(state.value, &exponent) == 0.5;
  return is_power_of_two && state.value >= kSmallest && 0 <= state.finite_steps &&
         state.finite_steps < kGrowthInterval && 0 <= state.skipped_steps &&
         state.finite_steps + state.skipped_steps <= steps;
}

bool LossScale::accept(bool gradients_are_finite) {
  constexpr double kGrowth = 2, kBackoff = 0.5;
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
