#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "binding.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/run_config.h"
#include "value.h"

/// From files, environment and command line to assignments `key = value`, and from those to a
/// configuration.
namespace sftrun::config {

/// In order of precedence, the least first.
enum class Layer { kMachine, kRun, kEnvironment, kCommandLine };

struct Assignment {
  std::string key;
  Value value;
  Layer layer;
  std::string place;        ///< of the key, for messages
  std::string value_place;  ///< of the value
  std::string source;       ///< as in Override
};

/// A YAML file's document as assignments; unknown sections come out as assignments too.
/// @param fields for its sections   @throws ConfigProblems if the document is no map at all
std::vector<Assignment> flatten(const Value& document, const std::string& file,
                                const Binding& fields, Problems& problems);

/// `key=value` words of the command line.
std::vector<Assignment> from_command_line(const std::vector<std::string>& words,
                                          const Binding& fields, Problems& problems);

/// SFTRUN_TRAIN__BATCH_SIZE=4 and the like. A name with one underscore too few is a warning.
std::vector<Assignment> from_environment(const Binding& fields, Problems& problems,
                                         std::vector<std::string>& warnings);

/// The machine file: assignments of what the configuration holds; the rest goes to `settings`.
std::vector<Assignment> from_machine_file(MachineSettings& settings, Problems& problems);

/// The environment variable of a key.
std::string environment_name(const std::string& key);

/// Applies assignments in their order to the configuration behind `fields`, noting places,
/// overrides and warnings.
void apply(const std::vector<Assignment>& assignments, Binding& fields, LoadedConfig& loaded,
           Problems& problems);

/// Relations between fields; each by itself is already right. Batch sizes are resolve's, which
/// knows the devices.
/// @param needs_data whether model and data must be named
void validate(const LoadedConfig& loaded, bool needs_data, Problems& problems,
              std::vector<std::string>& warnings);

}  // namespace sftrun::config
