#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

/// Flags, and settings on the command line, that are valid and change nothing. A contradiction is
/// an error of its command. Settings that change nothing in a run are in config/idle_settings.h.
namespace sftrun::app {

struct Command;

/// The end of a sentence that begins "--FLAG has no effect"; empty: it has one.
using IdleReason = std::function<std::string(const CLI::App&)>;

/// Flags of a command that share the reason for which they change nothing.
struct IdleRule {
  std::vector<std::string> flags;  ///< or settings: a key, or a section ("data.")
  IdleReason reason;
  std::vector<std::string> except = {};  ///< settings of these sections that it is not about
};

/// One line for each reason for which flags, or settings on the command line, change nothing beside
/// the others that are given: "--overwrite has no effect without --predictions".
/// @pre the command was parsed
std::vector<std::string> idle_flag_warnings(const Command& command);
/// Logs them, in one process of a run.
void warn_of_idle_flags(const Command& command);

namespace idle {

bool has(const CLI::App& command, const std::string& flag);
/// Of a flag that is given several times the last; "": it is not given.
std::string value_of(const CLI::App& command, const std::string& flag);

IdleReason always(const std::string& why);
IdleReason without(const std::string& flag, const std::string& why = {});
IdleReason with(const std::string& flag, const std::string& why = {});
IdleReason with_value(const std::string& flag, const std::string& value);

/// Rules of several commands
IdleRule overwrite_of_stream();
IdleRule sampling_of_greedy();
IdleRule as_stored_of_model();
IdleRule launch_flags_of_rank();

}  // namespace idle
}  // namespace sftrun::app
