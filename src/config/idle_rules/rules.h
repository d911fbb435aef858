#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sftrun/config/idle_settings.h"

/// Why settings may change nothing. idle_settings.cpp walks these rules.
namespace sftrun::config {

/// Settings that share the reason for which they change nothing.
struct IdleRule {
  std::vector<std::string> keys;
  /// The end of a sentence that begins "KEY has no effect"; empty: it has one, or may have.
  std::function<std::string(const RunConfig& run, const RunFacts& facts)> reason;
  /// Whether the run would have the value anyway, as in a file of resolved values; null: never.
  /// @param asked before it was resolved
  std::function<bool(const RunConfig& asked, const RunConfig& run)> is_implied = nullptr;
  std::string common_name = {};  ///< of the section whose keys one warning names together
  std::string part = {};      ///< of the key's value, if only that has none: "weight in data.val"
  bool also_default = false;  ///< a value that is the default is asked for, too
};
using IdleRules = std::vector<IdleRule>;

/// In the order in which they are asked: of several reasons for a key the first one counts.
IdleRules rules_of_adapters();
IdleRules rules_of_data();
IdleRules rules_of_objectives();
IdleRules rules_of_rollouts();
IdleRules rules_of_training();
IdleRules rules_of_optimizers();
IdleRules rules_of_evaluation();
IdleRules rules_of_devices();
IdleRules rules_of_processes();
IdleRules rules_of_communication();
IdleRules rules_of_trackers();
IdleRules rules_of_callbacks();

bool has_validation_data(const RunConfig& run);
/// Why a run evaluates nothing; empty: it does.
std::string why_no_evaluation(const RunConfig& run);
/// " with train.objective sft"
std::string with_objective(const RunConfig& run);

}  // namespace sftrun::config
