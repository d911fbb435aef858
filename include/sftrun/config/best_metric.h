#pragma once

#include <string>

#include "sftrun/config/run_config.h"

/// The metric by which the best evaluation of a run is found.
namespace sftrun::config {

/// `train.metric_for_best_model` in full: "loss" is "eval_loss", and so is none.
std::string best_metric(const TrainConfig& config);

/// Whether it is measured on generated answers, so that each evaluation needs them.
bool is_judged_by_answers(const TrainConfig& config);

/// `train.greater_is_better`, or what follows from the metric's name.
bool is_greater_better(const TrainConfig& config);

/// Whether `name` is "eval_SET_loss" of a validation set (`EvalMetrics::value_of`).
bool is_loss_of_set(const std::string& name, const std::string& set);

}  // namespace sftrun::config
