#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/config/assignment.h"
#include "sftrun/config/binding.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/run_config.h"
#include "sftrun/config/value.h"

/// Turns files, environment and command line into assignments `key = value`.
namespace sftrun::config {

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

}  // namespace sftrun::config
