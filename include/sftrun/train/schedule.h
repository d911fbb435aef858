#pragma once

#include <cstdint>

#include "sftrun/config/run_config.h"

/// Learning-rate schedules, equal to transformers' get_scheduler (transformers/optimization.py).
namespace sftrun::train {

class Schedule {
 public:
  Schedule(config::Scheduler kind, double peak, int64_t warmup_steps, int64_t total_steps);
  /// The rate of optimizer step `step`, counted from 0.
  double lr_at(int64_t step) const;

 private:
  double factor_after_warmup(double step) const;
  config::Scheduler kind_;
  double peak_;
  int64_t warmup_steps_, total_steps_;
};

/// warmup_steps if given, else ceil(warmup_ratio * total_steps), as transformers'
/// TrainingArguments.
int64_t warmup_steps_of(const config::TrainConfig& config, int64_t total_steps);

}  // namespace sftrun::train
