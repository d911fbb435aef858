#pragma once

#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// The metric by which the best evaluation of a run is found.
namespace sftrun::config {

/// `train.metric_for_best_model` in full: "loss" is "eval_loss", and so is none.
std::string best_metric(const TrainConfig& config);

/// Whether it is measured on generated answers, so that each evaluation needs them.
bool is_judged_by_answers(const TrainConfig& config);

/// `train.greater_is_better`, or what follows from the metric's name.
bool is_greater_better(const TrainConfig& config);

/// Whether `name` is "eval_SET_loss" of a validation set (`EvalMetrics::value_of`). SET is the set's
/// name, a path as data.val has it, or its last parts, with or without the file's ending.
bool is_loss_of_set(const std::string& name, const std::string& set);

/// Names of validation sets for metrics and lists, each once: "a.jsonl" and "a.jsonl #2".
std::vector<std::string> distinct_set_names(std::vector<std::string> names);

/// "eval_SET_loss" of each set, SET being the shortest that no other set has.
/// @pre distinct names
std::vector<std::string> losses_of_sets(const std::vector<std::string>& sets);

/// Those of the sets whose loss `name` may be; several if it names the file of several folders.
std::vector<std::string> sets_of_loss(const std::string& name,
                                      const std::vector<std::string>& sets);

}  // namespace sftrun::config
