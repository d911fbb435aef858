#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sftrun/observe/metrics.h"

namespace sftrun::track {

/// A line of metrics.jsonl, as trackers get it: names as in the TensorBoard files (train/loss,
/// rank_0/loss, time/forward, eval/loss). Times of steps and evaluations stand last: a tracker that
/// has the last value has the line.
struct TrackedLine {
  int64_t step = 0;
  bool is_evaluation = false;
  double seconds = 0;  ///< that the step or the evaluation took
  observe::NamedValues values;
};

/// The last value of lines of each kind.
constexpr std::string_view kLastOfStep = "train/step_seconds", kLastOfEvaluation = "eval/seconds";

/// nullopt: not a line of metrics. Values that are null or no number are left out.
std::optional<TrackedLine> tracked_line(std::string_view line);

/// Until which line of each kind a tracker has all.
struct Position {
  int64_t step = -1, evaluation = -1;

  bool has(const TrackedLine& line) const {
    return line.step <= (line.is_evaluation ? evaluation : step);
  }
  void add(const TrackedLine& line) { (line.is_evaluation ? evaluation : step) = line.step; }
};

}  // namespace sftrun::track
