#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"
#include "sftrun/core/verbosity.h"

namespace sftrun::launch {

/// Warnings about the run that were already shown on the console, also before a restart.
class WarningsShown {
 public:
  explicit WarningsShown(const std::vector<std::string>& shown)
      : shown_(shown.begin(), shown.end()) {}
  /// @return whether `warning` was not shown yet
  bool add(std::string_view warning) { return shown_.emplace(warning).second; }

 private:
  std::set<std::string> shown_;
};

/// Selects the lines of a worker that are shown on the console (its log file has all lines), and
/// marks them with the rank.
///
/// Shown are, from the main rank, all lines of level info and higher; from the others, warnings and
/// errors. With log::Verbosity::kQuiet, only warnings and errors; with kVerbose, the lines of the
/// main rank also of level debug, and of the others of level info. Warnings that name no rank
/// (log::warn) are about the run, and each is shown once. A line of core/log.h has a level. Other
/// lines on stdout count as info; on stderr their words decide. The error that ends a worker
/// (`error: …` and the indented lines below) is not shown, because the supervisor reports it once for
/// all ranks. With a live view, the lines of single steps are not shown. Each stream has its own filter, because indented lines belong to the line before.
class LineFilter {
 public:
  struct Options {
    int rank = 0;
    bool is_main = true;     ///< rank 0 (the first local rank on other nodes)
    bool show_rank = false;  ///< more than one worker
    log::Verbosity verbosity = log::Verbosity::kNormal;
    bool hide_steps = false;            ///< the live view shows them
    WarningsShown* warnings = nullptr;  ///< shown so far; null: all warnings are shown
  };
  LineFilter(const Options& options, Stream stream) : options_(options), stream_(stream) {}

  /// The line to print; nullopt: none.
  std::optional<std::string> show(std::string_view line);

 private:
  struct LogLine;

  bool should_show(std::string_view line);
  bool shows_level(std::string_view level) const;
  /// A warning about the run, which any rank may write: shown once, without a rank.
  bool is_about_run(const LogLine& line) const;

  Options options_;
  Stream stream_;
  bool last_shown_ = false;
  bool is_in_error_ = false;  ///< after the first line of the worker's error
};

/// Whether the text is a single step's line as observe::ProgressMeter writes it: "step 17/200 loss
/// …".
bool is_step_line(std::string_view message);

/// Whether the line belongs to the C++ stack trace at the end of a LibTorch error.
bool is_stack_trace(std::string_view line);

}  // namespace sftrun::launch
