#include "sftrun/config/best_metric.h"

#include <filesystem>

namespace sftrun::config {

std::string best_metric(const TrainConfig& config) {
  const std::string& name = config.metric_for_best_model;
  if (name.empty()) return "eval_loss";
  return name.starts_with("eval_") ? name : "eval_" + name;
}

bool is_judged_by_answers(const TrainConfig& config) {
  const std::string metric = best_metric(config);
  return metric.starts_with("eval_rouge") || metric == "eval_exact_match";
}

bool is_greater_better(const TrainConfig& config) {
  const std::string metric = best_metric(config);
  return config.greater_is_better.value_or(!metric.ends_with("loss") &&
                                           !metric.ends_with("perplexity"));
}

bool is_loss_of_set(const std::string& name, const std::string& set) {
  return name == "eval_" + set + "_loss" ||
         name == "eval_" + std::filesystem::path(set).stem().string() + "_loss";
}

}  // namespace sftrun::config
