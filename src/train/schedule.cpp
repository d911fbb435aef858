#include "sftrun/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sftrun/core/error.h"

namespace sftrun::train {

Schedule::Schedule(config::Scheduler kind, double peak, int64_t warmup_steps, int64_t total_steps,
                   config::WarmupFrom warmup_from)
    : kind_(kind),
      peak_(peak),
      warmup_steps_(warmup_steps),
      total_steps_(total_steps),
      warmup_from_(warmup_from) {}

double Schedule::lr_at(int64_t step) const {
  const bool warms_up = kind_ != config::Scheduler::kConstant;
  if (warms_up && step < warmup_steps_) {
    const int64_t first = warmup_from_ == config::WarmupFrom::kFirstStep ? 1 : 0;
    return peak_ * static_cast<double>(step + first) / static_cast<double>(warmup_steps_);
  }
  return peak_ * factor_after_warmup(static_cast<double>(step));
}

double Schedule::factor_after_warmup(double step) const {
  const auto warmup = static_cast<double>(warmup_steps_), total = static_cast<double>(total_steps_);
  const double progress = (step - warmup) / std::max(1.0, total - warmup);
  switch (kind_) {
    case config::Scheduler::kConstant:
    case config::Scheduler::kConstantWithWarmup:
      return 1;
    case config::Scheduler::kLinear:
      return std::max(0.0, (total - step) / std::max(1.0, total - warmup));
    case config::Scheduler::kCosine:
      return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    case config::Scheduler::kCosineWithRestarts:  // one cycle, transformers' default
      return progress >= 1
                 ? 0
                 : std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * std::fmod(progress, 1.0))));
    case config::Scheduler::kPolynomial: {  // decays to lr_end 1e-7 with power 1
      constexpr double kEnd = 1e-7;
      if (step > total) return kEnd / peak_;
      return ((peak_ - kEnd) * (1 - progress) + kEnd) / peak_;
    }
    case config::Scheduler::kInverseSqrt: {
      const double timescale = warmup_steps_ > 0 ? warmup : 10000;
      return 1 / std::sqrt((step + timescale - warmup) / timescale);
    }
  }
  invariant_failed(__FILE__, __LINE__, "a known scheduler");
}

Schedule schedule_of(const config::TrainConfig& config, int64_t total_steps) {
  return {config.scheduler, config.learning_rate.value(), warmup_steps_of(config, total_steps),
          total_steps, config.warmup_from};
}

int64_t warmup_steps_of(const config::TrainConfig& config, int64_t total_steps) {
  if (config.warmup_steps) return *config.warmup_steps;
  return static_cast<int64_t>(
      std::ceil(config.warmup_ratio.value_or(0) * static_cast<double>(total_steps)));
}

}  // namespace sftrun::train
