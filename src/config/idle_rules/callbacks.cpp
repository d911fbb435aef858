#include <string>

#include <vector>

#include "idle_rules/rules.h"

namespace sftrun::config {

IdleRules rules_of_callbacks() {
  return {
      {{"callbacks.events", "callbacks.timeout"},
       [](const RunConfig& run, const RunFacts&) {
         return run.callbacks.command.empty() ? " without callbacks.command" : "";
       }},
      {{"callbacks.command"},
       [](const RunConfig& run, const RunFacts&) {
         const auto& events = run.callbacks.events;
         if (events.empty()) return std::string(": callbacks.events is empty");
         const bool needs_evaluation = events == std::vector<std::string>{"evaluation"};
         return needs_evaluation ? why_no_evaluation(run) : "";
       }},
  };
}

}  // namespace sftrun::config
