#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "console.h"

namespace sftrun::launch {

/// Chooses which lines of a worker reach the console (its log file has them all), and marks them
/// with the rank.
///
/// Of rank 0 everything from info up, of the others warnings and errors; a line in the house format
/// says its level, of the rest stdout counts as info and stderr as what its words say. An error
/// that ends the worker (`error: …` and what is indented below) is not shown: the supervisor
/// reports it once, however many ranks met it. With a live progress line the lines of single steps
/// are not shown either. One filter a stream: indented lines follow the line they belong to.
class LineFilter {
 public:
  struct Options {
    int rank = 0;
    bool is_main = true;      ///< rank 0 (the first local rank on other nodes)
    bool show_rank = false;   ///< more than one worker
    bool hide_steps = false;  ///< a live line shows them
  };
  LineFilter(const Options& options, Stream stream) : options_(options), stream_(stream) {}

  /// What to print; nullopt: nothing.
  std::optional<std::string> show(std::string_view line);

 private:
  bool should_show(std::string_view line);

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
