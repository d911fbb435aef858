#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sftrun::observe {

/// What a progress line shows of one step.
struct ProgressStep {
  int64_t step = 0;  ///< optimizer steps done, from 1
  double loss = 0, grad_norm = 0, learning_rate = 0;
  int64_t tokens = 0;  ///< of the global batch
  double step_seconds = 0;
  std::optional<double> aux_loss = {};  ///< shown after the loss if it is used
  std::string_view word = {};           ///< of a metric of the objective
  std::optional<double> value = {};     ///< of that metric, shown after the others
};

/// Formats progress:
///     step 17/200 loss 1.8342 grad_norm 0.912 lr 1.96e-04 tok/s 48210 eta 3m 20s
/// Rate and remaining time are exponentially weighted means over about the last 20 steps. The first
/// step (loading, warm-up) is dropped once there is a second one.
class ProgressMeter {
 public:
  explicit ProgressMeter(int64_t total_steps) : total_steps_(total_steps) {}

  /// Adds a step. Call once per step.
  void add(const ProgressStep& step);
  std::string line() const;          ///< for the last added step
  double tokens_per_second() const;  ///< smoothed; 0 before the first step
  double seconds_left() const;

 private:
  int64_t total_steps_;
  ProgressStep last_;
  int64_t count_ = 0;
  double mean_tokens_ = 0, mean_seconds_ = 0;
};

}  // namespace sftrun::observe
