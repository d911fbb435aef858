#pragma once

#include <string>
#include <vector>

#include "sftrun/config/binding.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/run_config.h"
#include "sftrun/config/value.h"

/// Assignments `key = value`, and the configuration that they make.
namespace sftrun::config {

/// In order of precedence, lowest first.
enum class Layer { kMachine, kNamedFile, kRun, kEnvironment, kCommandLine };

struct Assignment {
  std::string key;
  Value value;
  Layer layer;
  std::string place;        ///< of the key, for messages
  std::string value_place;  ///< of the value
  std::string source;       ///< as in Override
};

/// Applies assignments in order to the configuration of `fields`. Records places, overrides and
/// warnings.
void apply(const std::vector<Assignment>& assignments, Binding& fields, LoadedConfig& loaded,
           Problems& problems);

enum class ConfigUse : uint8_t {
  kTraining,
  kEvaluation,  ///< what concerns training only is not checked
  kNoRun,       ///< model and data need not be named
};

/// Checks relations between fields; each field by itself is already valid. resolve checks batch
/// sizes, because it knows the number of devices.
void validate(const LoadedConfig& loaded, ConfigUse use, Problems& problems,
              std::vector<std::string>& warnings);

/// Whether a setting asks for evaluations, and there are no data for them.
bool lacks_validation_data(const RunConfig& config);

}  // namespace sftrun::config
