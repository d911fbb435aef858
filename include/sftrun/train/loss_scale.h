#pragma once

#include <cstdint>

/// Dynamic loss scaling for fp16, whose smallest number is too large for many gradients
/// (arXiv:1710.03740, section 3.2): the loss is multiplied before the backward pass, the gradients
/// are divided before the update. Constants and rules are those of torch.amp.GradScaler.
namespace sftrun::train {

class LossScale {
 public:
  /// What a checkpoint keeps.
  struct State {
    double value = 65536;
    int64_t finite_steps = 0;   ///< in a row, since the value last changed
    int64_t skipped_steps = 0;  ///< of the run: their update was left out
  };

  /// @param is_active false: the scale is 1 and no step is skipped (bf16, fp32)
  explicit LossScale(bool is_active) : is_active_(is_active) {}
  bool is_active() const { return is_active_; }
  double value() const { return is_active_ ? state_.value : 1; }
  const State& state() const { return state_; }
  /// Whether a run can be in this state after so many steps: what a file says otherwise is damage.
  static bool is_possible(const State& state, int64_t steps);
  void restore(const State& state) { state_ = state; }

  /// Counts a step. After 2000 finite ones in a row the scale doubles; after one that is not finite
  /// it halves.   @return whether the weights may be updated
  bool accept(bool gradients_are_finite);
  /// Whether halving further cannot help: gradients are not finite at a scale of 2^-10 either.
  bool is_exhausted() const { return is_active_ && state_.value < kSmallest; }

 private:
  static constexpr double kSmallest = 1.0 / 1024;
  static constexpr int64_t kGrowthInterval = 2000;  // steps
  bool is_active_;
  State state_;
};

}  // namespace sftrun::train
