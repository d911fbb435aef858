#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/trackers.h"
#include "sftrun/track/live_trackers.h"
#include "tracked_line.h"

namespace sftrun::track {

/// A line, and when it was written.
struct TimedLine {
  TrackedLine line;
  int64_t unix_ms = 0;
};

/// What a tracker is told of the run.
struct TrackedRun {
  const config::TrackerRow* row = nullptr;
  const config::RunConfig* config = nullptr;
  std::string project, name, uri;
  std::string run_dir;  ///< absolute
  std::string guard;
  /// Keeps what the tracker notes of its run, for the process that continues it.
  std::function<void(const nlohmann::ordered_json&)> keep;
  std::function<bool()> should_stop;  ///< true ends requests at once
};

/// How the training began.
struct RunBegin {
  int64_t started_ms = 0;
  nlohmann::ordered_json record = nullptr;     ///< of the run to continue; null: a new one begins
  nlohmann::ordered_json abandoned = nullptr;  ///< of one that is not continued; null: none
};

/// What a tracker needs is not installed: it is not asked again.
struct MissingPackage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Sends lines to one tracker. Each function may throw any std::exception; it is called again later.
/// For one thread.
class Tracker {
 public:
  virtual ~Tracker() = default;
  /// Once, before all others. Does not throw.
  virtual void begin(RunBegin begin) = 0;
  /// Makes the tracked run or continues it. Called again after each failure.
  /// @return which lines the tracker has
  virtual Position open() = 0;
  virtual void send(std::span<const TimedLine> lines) = 0;
  virtual void end(RunEnd end) = 0;
};

/// Settings of a run by their keys, as texts.
std::vector<std::pair<std::string, std::string>> settings_texts(const config::RunConfig& config);

std::unique_ptr<Tracker> make_mlflow(TrackedRun run);
/// A program in Python that the package of the tracker is for.
std::unique_ptr<Tracker> make_exporter(TrackedRun run);

}  // namespace sftrun::track
