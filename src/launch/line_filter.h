#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"

namespace sftrun::launch {

/// Warnings about the run that the console has shown: by the launcher, by a worker, or by one
/// before a restart.
class WarningsShown {
 public:
  explicit WarningsShown(const std::vector<std::string>& shown)
      : shown_(shown.begin(), shown.end()) {}
  /// @return whether `warning` was not shown yet
  bool add(std::string_view warning) { return shown_.emplace(warning).second; }

 private:
  std::set<std::string> shown_;
};

/// Chooses which lines of a worker reach the console (its log file has them all), and marks them
/// with the rank.
///
/// Of the main rank everything from info up, of the others warnings and errors. Warnings that name
/// no rank (log::warn) are about the run: each is shown once, whichever rank comes upon it first. A
/// line in the house format says its level, of the rest stdout counts as info and stderr as what
/// its words say. An error that ends the worker (`error: …` and what is indented below) is not
/// shown: the supervisor reports it once, however many ranks met it. With a live progress line the
/// lines of single steps are not shown either. One filter a stream: indented lines follow the line
/// they belong to.
class LineFilter {
 public:
  struct Options {
    int rank = 0;
    bool is_main = true;                ///< rank 0 (the first local rank on other nodes)
    bool show_rank = false;             ///< more than one worker
    bool hide_steps = false;            ///< a live line shows them
    WarningsShown* warnings = nullptr;  ///< of this run so far; null: all are shown
  };
  LineFilter(const Options& options, Stream stream) : options_(options), stream_(stream) {}

  /// What to print; nullopt: nothing.
  std::optional<std::string> show(std::string_view line);

 private:
  struct HouseLine;

  bool should_show(std::string_view line);
  /// A warning that any rank may come upon: shown once, without a rank.
  bool is_about_run(const HouseLine& line) const;

  Options options_;
  Stream stream_;
  bool last_shown_ = false;
};

/// Whether the text is a single step's line as observe::ProgressMeter writes it: "step 17/200 loss
/// …".
bool is_step_line(std::string_view message);

/// Whether the line is of the C++ stack trace at the end of a LibTorch error.
bool is_stack_trace(std::string_view line);

}  // namespace sftrun::launch
