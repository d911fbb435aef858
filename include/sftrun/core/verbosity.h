#pragma once

#include <optional>
#include <string_view>

/// How much a process prints about what it does, chosen with --quiet, --verbose or SFTRUN_LOG. Log
/// files are the same with all.
namespace sftrun::log {

enum class Verbosity {
  kQuiet,   ///< warnings, errors and results
  kNormal,  ///< also progress and information
  kVerbose  ///< also debug lines, and the information of every rank
};

/// The variable that holds it, which processes inherit: "quiet", "normal" or "verbose".
inline constexpr const char* kVerbosityVariable = "SFTRUN_LOG";

std::optional<Verbosity> parse_verbosity(std::string_view word);
/// Of the environment; kNormal if the variable is not set, or holds another word.
Verbosity verbosity();

}  // namespace sftrun::log
