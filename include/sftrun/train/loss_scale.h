#pragma once

#include <cstdint>

/// Dynamic loss scaling for fp16 (arXiv:1710.03740, section 3.2): many gradients are smaller than
/// the smallest fp16 number. The loss is multiplied by the scale before the backward pass, and the
/// gradients are divided by it before the update. Constants and rules are those of
/// torch.amp.GradScaler.
namespace sftrun::train {

class LossScale {
 public:
  /// The state that a checkpoint stores.
  struct State {
    double value = 65536;
    int64_t finite_steps = 0;   ///< in a row, since the value last changed
    int64_t skipped_steps = 0;  ///< in the whole run: no update was made
  };

  /// @param is_active false: the scale is 1 and no step is skipped (bf16, fp32)
  explicit LossScale(bool is_active) : is_active_(is_active) {}
  bool is_active() const { return is_active_; }
  double value() const { return is_active_ ? state_.value : 1; }
  const State& state() const { return state_; }
  /// Whether a run can have this state after `steps` steps. If not, the checkpoint is damaged.
  static bool is_possible(const State& state, int64_t steps);
  void restore(const State& state) { state_ = state; }

  /// Records a step. The scale doubles after 2000 consecutive steps with finite gradients and
  /// halves after a step without.   @return whether to update the weights
  bool accept(bool gradients_are_finite);
  /// The scale is below 2^-10 and gradients are still not finite: halving it further cannot help.
  bool is_exhausted() const { return is_active_ && state_.value < kSmallest; }

 private:
  static constexpr double kSmallest = 1.0 / 1024;
  static constexpr int64_t kGrowthInterval = 2000;  // steps
  bool is_active_;
  State state_;
};

}  // namespace sftrun::train
