#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config {
namespace relations {
namespace {

constexpr const char* kBestMetric = "train.metric_for_best_model";

bool has_validation_data(const DataConfig& data) {
  return !data.val.empty() || data.val_split > 0;
}

/// The settings that say when to evaluate.
std::vector<std::string> times_of_evaluations(const TrainConfig& train) {
  const EvalStrategy strategy = train.eval_strategy;
  std::vector<std::string> keys;
  if (strategy == EvalStrategy::kNo) return keys;
  if (strategy == EvalStrategy::kSteps || strategy == EvalStrategy::kEpoch)
    keys.emplace_back("train.eval_strategy");
  if (train.eval_steps) keys.emplace_back("train.eval_steps");
  if (train.eval_on_start) keys.emplace_back("train.eval_on_start");
  return keys;
}

/// The setting that needs the best evaluation; nullptr: none.
const char* use_of_best(const TrainConfig& train) {
  return train.early_stopping_patience          ? "train.early_stopping_patience"
         : train.load_best_model_at_end         ? "train.load_best_model_at_end"
         : !train.metric_for_best_model.empty() ? "train.metric_for_best_model"
                                                : nullptr;
}

/// The setting that needs evaluations; nullptr: none.
const char* use_of_evaluations(const TrainConfig& train) {
  return train.predict_with_generate ? "train.predict_with_generate" : use_of_best(train);
}

constexpr auto kTimes = std::to_array<Rule>({
    {[](Run run) {
       return run.train.eval_strategy == EvalStrategy::kSteps && !run.train.eval_steps;
     },
     "`train.eval_strategy` is steps, but `train.eval_steps` is not set",
     {"train.eval_strategy"},
     "add, for example, eval_steps: 200"},
});

constexpr auto kAnswers = std::to_array<Rule>({
    {[](Run run) { return run.train.predict_with_generate && run.train.generation_num_beams > 1; },
     [](Run run) {
       return fmt::format(
           "`train.generation_num_beams` is {}, and answers are generated without beam search",
           run.train.generation_num_beams);
     },
     {"train.generation_num_beams"},
     "remove it: answers are greedy"},
});

/// The records that evaluations use; several sets have a loss each.
const std::vector<DataSource>& validation_sources(const Checks& checks) {
  return checks.run().data.val.empty() ? checks.run().data.train : checks.run().data.val;
}

/// Names of the sets, as evaluations have them. Names of subsets are known only when the data is
/// loaded.
std::vector<std::string> validation_sets(const Checks& checks) {
  std::vector<std::string> names;
  for (const DataSource& source : validation_sources(checks)) names.push_back(source.path);
  return distinct_set_names(names);
}

void check_loss_of_set(Checks& checks, const std::string& metric) {
  const std::vector<std::string> sets = validation_sets(checks);
  const std::vector<DataSource>& sources = validation_sources(checks);
  const auto is_subset = [](const DataSource& source) { return !source.name.empty(); };
  if (sets.size() > 1 && std::any_of(sources.begin(), sources.end(), is_subset)) return;
  if (const auto problem = problem_of_set_loss(metric, sets))
    checks.error(fmt::format("`{}` is `{}`, {}", kBestMetric, excerpt(metric), problem->reason),
                 {kBestMetric}, problem->fix);
}

/// Compares what follows "eval_", which all have.
std::string nearest_metric(const std::string& metric, std::vector<std::string> known) {
  constexpr std::string_view kBefore = "eval_";
  for (std::string& name : known) name.erase(0, kBefore.size());
  const size_t begin = metric.starts_with(kBefore) ? kBefore.size() : 0;
  const std::string near = nearest(metric.substr(begin), known);
  return near.empty() ? "" : std::string(kBefore) + near;
}

/// Metrics of evaluations, but for the losses of sets.
std::vector<std::string> best_metrics(const Checks& checks) {
  const ObjectiveInfo& objective = checks.run().train.objective_info();
  if (checks.run().train.has_rollouts()) {  // answers have rewards, and no loss
    std::vector<std::string> names = {"eval_reward", "eval_entropy", "eval_completions/mean_length",
                                      "eval_completions/clipped_ratio"};
    for (const RewardSpec& reward : checks.run().train.rollouts.reward)
      names.push_back(fmt::format("eval_rewards/{}/mean", reward.label));
    return names;
  }
  std::vector<std::string> names = {"eval_loss"};
  if (objective.predicts_labels())
    names.insert(names.end(), {"eval_perplexity", "eval_token_accuracy"});
  if (objective.reads_answers())
    names.insert(names.end(), {"eval_rouge_l", "eval_rouge1", "eval_rouge2", "eval_exact_match"});
  for (const std::string_view metric : objective.metrics)
    names.push_back("eval_" + std::string(metric));
  return names;
}

/// @param asks the setting that needs the best evaluation
void check_best(Checks& checks, const char* asks) {
  const TrainConfig& train = checks.run().train;
  constexpr const char* kKey = kBestMetric;
  const std::string metric = best_metric(train);
  const std::vector<std::string> known = best_metrics(checks);
  const bool is_known = std::find(known.begin(), known.end(), metric) != known.end();
  if (!is_known && (!metric.ends_with("_loss") || train.has_rollouts())) {
    const std::string near = nearest_metric(metric, known);
    checks.error(fmt::format("`{}` is `{}`, which is not a metric of an evaluation", kKey,
                             excerpt(train.metric_for_best_model)),
                 {kKey},
                 near.empty() ? "use " + join(known, ", ") +
                                    (train.has_rollouts() ? "" : " or eval_SET_loss")
                              : fmt::format("did you mean `{}`?", near));
  } else if (!is_known) {
    check_loss_of_set(checks, metric);
  } else if (is_judged_by_answers(train) && !train.predict_with_generate) {
    checks.error(fmt::format("`{}` is {}, which needs answers", kKey, metric), {kKey},
                 "set train.predict_with_generate: true");
  } else if (metric == "eval_token_accuracy" && !train.eval_token_accuracy) {
    checks.error(fmt::format("`{}` is {}, which is not measured", kKey, metric), {kKey},
                 "set train.eval_token_accuracy: true");
  }
  const bool is_error = metric.ends_with("loss") || metric == "eval_perplexity";
  const bool is_score = is_judged_by_answers(train) || metric.ends_with("accuracy");
  if ((is_error || is_score) && train.greater_is_better == is_error) {
    checks.warn(
        fmt::format("train.greater_is_better is {}: the best model is the one with the {} {}",
                    is_error, is_error ? "highest" : "lowest", metric),
        "train.greater_is_better");
  }
  if (train.eval_strategy == EvalStrategy::kNo) {
    checks.error(fmt::format("`{}` needs evaluations, and `train.eval_strategy` is no", asks),
                 {asks, "train.eval_strategy"},
                 "set train.eval_strategy to epoch, or to steps with train.eval_steps");
  }
}

void require_evaluations(Checks& checks, const char* asks) {
  if (has_validation_data(checks.run().data)) return;
  checks.error(fmt::format("`{}` requires validation data, but there is none", asks), {asks},
               "set data.val to a file or data.val_split to a share such as 0.05");
}

}  // namespace

void check_evaluation(Checks& checks) {
  const TrainConfig& train = checks.run().train;
  checks.require(kTimes);
  if (has_validation_data(checks.run().data) || !checks.needs_data()) return;
  const std::vector<std::string> asks = times_of_evaluations(train);
  if (asks.empty()) return;
  checks.error(fmt::format("`{}` requires validation data, but there is none", asks.front()),
               {asks.front().c_str()},
               "set data.val to a file or data.val_split to a share such as 0.05, or remove " +
                   join(asks, " and "));
}

/// Settings of evaluations, their answers, and the best of them.
void check_answers_and_best(Checks& checks) {
  const TrainConfig& train = checks.run().train;
  checks.require(kAnswers);
  if (train.predict_with_generate)
    checks.error(objective_refusals(checks.run(), "train.predict_with_generate"));
  if (train.eval_token_accuracy)
    checks.error(objective_refusals(checks.run(), "train.eval_token_accuracy"));
  if (const char* asks = use_of_best(train)) check_best(checks, asks);
  const char* asks = use_of_evaluations(train);
  if (asks != nullptr && checks.needs_data()) require_evaluations(checks, asks);
  if (train.early_stopping_patience && !train.load_best_model_at_end)
    checks.warn(
        "train.early_stopping_patience without train.load_best_model_at_end keeps no checkpoint "
        "of the best evaluation, and the result is the model of the last step; for the best "
        "model set train.load_best_model_at_end: true",
        "train.early_stopping_patience");
}

}  // namespace relations

bool lacks_validation_data(const RunConfig& config) {
  return !relations::has_validation_data(config.data) &&
         (!relations::times_of_evaluations(config.train).empty() ||
          relations::use_of_evaluations(config.train) != nullptr);
}

}  // namespace sftrun::config
