#pragma once

#include <cstdint>

#include "sftrun/config/run_config.h"

/// Learning-rate schedules, equal to transformers' get_scheduler (transformers/optimization.py)
/// except for a warm-up with WarmupFrom::kFirstStep.
namespace sftrun::train {

class Schedule {
 public:
  /// @param warmup_from rates of n warm-up steps; kZero: 0, 1/n, 2/n, …; kFirstStep: 1/n, 2/n, …
  Schedule(config::Scheduler kind, double peak, int64_t warmup_steps, int64_t total_steps,
           config::WarmupFrom warmup_from);
  /// Learning rate of optimizer step `step`, counted from 0.
  double lr_at(int64_t step) const;

 private:
  double factor_after_warmup(double step) const;
  config::Scheduler kind_;
  double peak_;
  int64_t warmup_steps_, total_steps_;
  config::WarmupFrom warmup_from_;
};

/// The schedule of a run. @param config resolved
Schedule schedule_of(const config::TrainConfig& config, int64_t total_steps);
/// warmup_steps if set, else ceil(warmup_ratio * total_steps), as in transformers'
/// TrainingArguments.
int64_t warmup_steps_of(const config::TrainConfig& config, int64_t total_steps);

}  // namespace sftrun::train
