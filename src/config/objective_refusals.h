#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"

/// Settings that an objective refuses because of its properties, in one table.
namespace sftrun::config {

struct ObjectiveRefusal {
  const char* key;  ///< of the setting that is refused
  std::string message, fix;
};

/// The refusals that the checks of the objective report. If it refuses what is trained, that one
/// alone.
std::vector<ObjectiveRefusal> objective_refusals(const RunConfig& run);
/// Those that the checks of a setting report.   @param key "parallel.fetch"
std::vector<ObjectiveRefusal> objective_refusals(const RunConfig& run, std::string_view key);

}  // namespace sftrun::config
