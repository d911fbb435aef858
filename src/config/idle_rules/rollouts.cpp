#include <string>

#include "idle_rules/rules.h"

namespace sftrun::config {

IdleRules rules_of_rollouts() {
  IdleRules rules;
  rules.push_back(
      {{"train.rollouts.n", "train.rollouts.num_iterations", "train.rollouts.max_new_tokens",
        "train.rollouts.temperature", "train.rollouts.top_p", "train.rollouts.top_k",
        "train.rollouts.min_p", "train.rollouts.batch_size", "train.rollouts.chat",
        "train.rollouts.environment", "train.rollouts.max_turns",
        "train.rollouts.environment_timeout", "train.rollouts.num_samples", "train.rollouts.engine",
        "train.rollouts.engine_model", "train.rollouts.engine_token_variable",
        "train.rollouts.engine_timeout"},
       [](const RunConfig& run, const RunFacts&) {
         if (run.train.writes_answers()) return std::string();
         return std::string(
             run.train.objective_info().takes_own_answers
                 ? " without train.rollouts.share, which says how many examples get an "
                   "answer of the student's own"
                 : " without train.rollouts.reward, which says how answers are judged");
       }});
  rules.push_back(
      {{"train.epsilon", "train.epsilon_high", "train.delta", "train.importance_sampling_level"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.has_rollouts() && run.train.rollouts.num_iterations == 1
                    ? std::string(
                          " with train.rollouts and one step on each batch of answers, where every "
                          "ratio is 1 (train.rollouts.num_iterations)")
                    : std::string();
       }});
  rules.push_back(
      {{"train.sampling_correction", "train.sampling_correction_max"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.has_rollouts() && !run.train.rollouts.keeps_sampled_logps()
                    ? std::string(
                          " with train.rollouts whose answers are drawn from the model itself, at "
                          "temperature 1 without cuts: there is nothing to correct")
                    : std::string();
       }});
  rules.push_back({{"train.eval_batch_size"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.has_rollouts()
                                ? std::string(
                                      " with train.rollouts, of which evaluations write as many "
                                      "answers at a time as training (train.rollouts.batch_size)")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.environment"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.max_turns == 1
                                ? std::string(": train.rollouts.max_turns is 1")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.max_turns", "train.rollouts.environment_timeout"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.environment.empty()
                                ? std::string(" without train.rollouts.environment")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.engine_model", "train.rollouts.engine_token_variable",
                    "train.rollouts.engine_timeout"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.is_by_server()
                                ? std::string()
                                : std::string(
                                      " with train.rollouts.engine self, which asks no server");
                   }});
  rules.push_back({{"train.max_completion_length"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.has_rollouts()
                                ? std::string(
                                      " with train.rollouts, where it is the same as "
                                      "train.rollouts.max_new_tokens")
                                : std::string();
                   },
                   [](const RunConfig& asked, const RunConfig& run) {
                     return asked.train.max_completion_length == run.train.rollouts.max_new_tokens;
                   }});
  rules.push_back(
      {{"data.group_by_length", "data.bin_tokens"}, [](const RunConfig& run, const RunFacts&) {
         return run.train.writes_answers()
                    ? std::string(
                          " with train.rollouts, whose answers have no length before "
                          "they are written")
                    : std::string();
       }});
  return rules;
}

}  // namespace sftrun::config
