#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "binding.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/run_config.h"
#include "value.h"

/// Turns files, environment and command line into assignments `key = value`, and those into a
/// configuration.
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

/// The assignments of a YAML file, also those of unknown sections.
/// @param fields lists the sections   @throws ConfigProblems if the document is not a map
std::vector<Assignment> flatten(const Value& document, const std::string& file,
                                const Binding& fields, Problems& problems);

/// Whether the assignment is `parallel.offload: none` (or false), for all keys of the section.
bool says_nothing_is_offloaded(const Assignment& assignment);

/// `key=value` words of the command line.
std::vector<Assignment> from_command_line(const std::vector<std::string>& words,
                                          const Binding& fields, Problems& problems);

/// Variables such as SFTRUN_TRAIN__BATCH_SIZE=4. A single underscore between section and key gives
/// a warning.
std::vector<Assignment> from_environment(const Binding& fields, Problems& problems,
                                         std::vector<std::string>& warnings);

/// The machine file: assignments for keys of the configuration; the other keys go to `settings`.
std::vector<Assignment> from_machine_file(MachineSettings& settings, Problems& problems);

/// The environment variable of a key.
std::string environment_name(const std::string& key);

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
