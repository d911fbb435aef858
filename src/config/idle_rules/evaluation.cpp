#include <fmt/format.h>

#include "idle_rules/rules.h"
#include "sftrun/config/best_metric.h"

namespace sftrun::config {

bool has_validation_data(const RunConfig& run) {
  return !run.data.val.empty() || run.data.val_split > 0;
}

std::string why_no_evaluation(const RunConfig& run) {
  if (!has_validation_data(run)) return " without validation data (data.val or data.val_split)";
  const bool evaluates = run.train.eval_strategy != EvalStrategy::kNo || run.train.eval_on_start;
  return evaluates ? "" : ": train.eval_strategy is no";
}

IdleRules rules_of_evaluation() {
  const auto no_evaluation = [](const RunConfig& run, const RunFacts&) {
    return why_no_evaluation(run);
  };
  return {
      {{"train.eval_batch_size", "train.eval_token_accuracy", "train.predict_with_generate"},
       no_evaluation},
      {{"train.eval_steps"},
       [](const RunConfig& run, const RunFacts&) {
         const EvalStrategy strategy = run.train.eval_strategy;
         return strategy == EvalStrategy::kNo || strategy == EvalStrategy::kEpoch
                    ? " unless train.eval_strategy is steps"
                    : "";
       }},
      {{"train.eval_on_start"},
       [](const RunConfig& run, const RunFacts&) {
         return has_validation_data(run) ? ""
                                         : " without validation data (data.val or data.val_split)";
       }},
      {{"train.generation_max_new_tokens", "train.generation_num_beams",
        "train.generation_batch_size", "train.generation_max_samples",
        "train.generation_time_budget"},
       [](const RunConfig& run, const RunFacts&) {
         if (run.train.predict_with_generate) return "";
         return run.train.writes_answers() ? " without train.predict_with_generate; train.rollouts "
                                             "has settings of its own for "
                                             "the answers that the run trains on"
                                           : " without train.predict_with_generate";
       }},
      {{"train.generation_time_budget"},
       [](const RunConfig& run, const RunFacts&) {
         return is_judged_by_answers(run.train)
                    ? fmt::format(
                          " with train.metric_for_best_model {}, which needs the answers of "
                          "every evaluation",
                          run.train.metric_for_best_model)
                    : "";
       }},
      {{"train.early_stopping_threshold"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.early_stopping_patience ? "" : " without train.early_stopping_patience";
       }},
      {{"train.greater_is_better"},
       [](const RunConfig& run, const RunFacts&) {
         const bool is_used = run.train.load_best_model_at_end ||
                              run.train.early_stopping_patience ||
                              !run.train.metric_for_best_model.empty();
         return is_used ? "" : " without train.metric_for_best_model";
       }},
  };
}

}  // namespace sftrun::config
