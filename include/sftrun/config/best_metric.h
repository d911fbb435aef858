#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// The metric by which the best evaluation of a run is found.
namespace sftrun::config {

/// `train.metric_for_best_model` in full: "loss" is "eval_loss". None is "eval_loss", of runs
/// that write their own answers "eval_reward".
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

/// Why `train.metric_for_best_model` cannot be the loss of a set, and what to do.
struct SetLossProblem {
  std::string reason, fix;
};
/// nullopt: `name` is the loss of one of several sets.
std::optional<SetLossProblem> problem_of_set_loss(const std::string& name,
                                                  const std::vector<std::string>& sets);

/// Evaluations of a run after each `eval_steps` or epoch, and after the last step.
/// @param epochs passes over the data in all `steps`; 0: they are streamed, and no epoch ends
/// @pre eval_strategy is resolved
int64_t num_evaluations(const TrainConfig& config, int64_t steps, double epochs);

/// Whether early stopping can end no run of so many steps and evaluations before its last step, and
/// what to do; nullopt: it can.
std::optional<std::string> early_stopping_warning(const TrainConfig& config, int64_t steps,
                                                  int64_t evaluations);

}  // namespace sftrun::config
