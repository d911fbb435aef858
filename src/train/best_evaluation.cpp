#include "sftrun/train/best_evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/error.h"

namespace sftrun::train {

double answer_seconds_allowed(const config::TrainConfig& config, double trained_s, double spent_s) {
  constexpr double kAlwaysS = 60;
  if (config.generation_time_budget == 0 || config::is_judged_by_answers(config)) return INFINITY;
  return std::max(0.0, kAlwaysS + config.generation_time_budget * trained_s - spent_s);
}

BestEvaluation::BestEvaluation(const config::TrainConfig& config)
    : is_wanted_(config.load_best_model_at_end || config.early_stopping_patience ||
                 !config.metric_for_best_model.empty()),
      patience_(config.early_stopping_patience),
      threshold_(config.early_stopping_threshold) {
  state_.metric = config::best_metric(config);
  state_.greater_is_better = config::is_greater_better(config);
}

/// False for NaN.
bool BestEvaluation::is_better(double value) const {
  if (!state_.value) return state_.greater_is_better ? value > -INFINITY : value < INFINITY;
  return state_.greater_is_better ? value > *state_.value : value < *state_.value;
}

bool BestEvaluation::add(double value, int64_t step) {
  SFTRUN_CHECK(step > 0);
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const bool is_best = is_better(value);
  const double gain = state_.value ? std::abs(value - *state_.value) : kFar;
  // The first evaluation is never worse, even if it is NaN.
  const bool improves = state_.num_evaluations == 0 || (is_best && gain > threshold_);
  state_.num_worse = improves ? 0 : state_.num_worse + 1;
  ++state_.num_evaluations;
  if (!is_best) return false;
  state_.value = value;
  state_.step = step;
  return true;
}

bool BestEvaluation::should_stop() const {
  return patience_ && state_.num_worse >= *patience_;
}

bool BestEvaluation::restore(const BestState& state) {
  if (state.metric != state_.metric || state.greater_is_better != state_.greater_is_better)
    return false;
  state_ = state;
  return true;
}

void BestEvaluation::forget() {
  state_.value.reset();
  state_.step = 0;
}

}  // namespace sftrun::train
