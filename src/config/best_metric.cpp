#include "sftrun/config/best_metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// "a/b/c.jsonl": c, c.jsonl, b/c, b/c.jsonl, a/b/c, a/b/c.jsonl. The whole name is the last.
std::vector<std::string> ends_of(const std::string& set) {
  std::vector<std::string> ends;
  for (size_t begin = set.rfind('/');; begin = set.rfind('/', begin - 1)) {
    const std::filesystem::path end = begin == std::string::npos ? set : set.substr(begin + 1);
    ends.push_back((end.parent_path() / end.stem()).string());
    ends.push_back(end.string());
    if (begin == std::string::npos || begin == 0) break;
  }
  ends.push_back(set);
  return ends;
}

}  // namespace

std::string best_metric(const TrainConfig& config) {
  const std::string& name = config.metric_for_best_model;
  if (name.empty()) return config.has_rollouts() ? "eval_reward" : "eval_loss";
  return name.starts_with("eval_") ? name : "eval_" + name;
}

bool is_judged_by_answers(const TrainConfig& config) {
  const std::string metric = best_metric(config);
  return metric == "eval_rouge1" || metric == "eval_rouge2" || metric == "eval_rouge_l" ||
         metric == "eval_exact_match";
}

bool is_greater_better(const TrainConfig& config) {
  const std::string metric = best_metric(config);
  return config.greater_is_better.value_or(!metric.ends_with("loss") &&
                                           !metric.ends_with("perplexity") && metric != "eval_kl");
}

bool is_loss_of_set(const std::string& name, const std::string& set) {
  const std::vector<std::string> ends = ends_of(set);
  return std::any_of(ends.begin(), ends.end(),
                     [&](const std::string& end) { return name == "eval_" + end + "_loss"; });
}

std::vector<std::string> distinct_set_names(std::vector<std::string> names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    const std::string plain = *name;
    for (int number = 2; std::find(names.begin(), name, *name) != name; ++number)
      *name = fmt::format("{} #{}", plain, number);
  }
  return names;
}

std::vector<std::string> losses_of_sets(const std::vector<std::string>& sets) {
  std::vector<std::string> losses;
  for (const std::string& set : sets) {
    for (const std::string& end : ends_of(set)) {
      const std::string loss = "eval_" + end + "_loss";
      if (sets_of_loss(loss, sets).size() > 1) continue;
      losses.push_back(loss);
      break;
    }
  }
  return losses;
}

std::vector<std::string> sets_of_loss(const std::string& name,
                                      const std::vector<std::string>& sets) {
  std::vector<std::string> named;
  for (const std::string& set : sets)
    if (name == "eval_" + set + "_loss") return {set};
  std::copy_if(sets.begin(), sets.end(), std::back_inserter(named),
               [&](const std::string& set) { return is_loss_of_set(name, set); });
  return named;
}

std::optional<SetLossProblem> problem_of_set_loss(const std::string& name,
                                                  const std::vector<std::string>& sets) {
  if (sets.size() < 2)
    return SetLossProblem{"but with one validation set there is only eval_loss", "use eval_loss"};
  const std::vector<std::string> named = sets_of_loss(name, sets);
  if (named.size() == 1) return std::nullopt;
  std::vector<std::string> known = losses_of_sets(named.empty() ? sets : named);
  if (named.empty()) known.insert(known.begin(), "eval_loss");
  return SetLossProblem{named.empty() ? "but no validation set has this name"
                                      : "which is the loss of " + join(named, " and of "),
                        "use " + join(known, " or ")};
}

int64_t num_evaluations(const TrainConfig& config, int64_t steps, double epochs) {
  if (config.eval_strategy == EvalStrategy::kEpoch)
    return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(epochs)));
  if (config.eval_strategy != EvalStrategy::kSteps || !config.eval_steps) return 0;
  return (steps + *config.eval_steps - 1) / *config.eval_steps;
}

std::optional<std::string> early_stopping_warning(const TrainConfig& config, int64_t steps,
                                                  int64_t evaluations) {
  if (!config.early_stopping_patience || evaluations == 0) return std::nullopt;
  const int64_t patience = *config.early_stopping_patience;
  // The first evaluation is the best so far, and after the last one the run ends anyway.
  const int64_t needed = patience + 2;
  if (evaluations >= needed) return std::nullopt;
  std::vector<std::string> fixes;
  if (const int64_t eval_steps = (steps - 1) / (needed - 1); eval_steps > 0)
    fixes.push_back(fmt::format(
        "set {}train.eval_steps to at most {}",
        config.eval_strategy == EvalStrategy::kSteps ? "" : "train.eval_strategy to steps and ",
        eval_steps));
  if (evaluations > 2)
    fixes.push_back(
        fmt::format("lower train.early_stopping_patience to at most {}", evaluations - 2));
  fixes.emplace_back("train for longer");
  return fmt::format(
      "early stopping cannot end this run before its last step: train.early_stopping_patience {} "
      "needs at least {}, and the run has {}; {}",
      patience, counted(needed, "evaluation"), evaluations, join(fixes, ", or "));
}

}  // namespace sftrun::config
