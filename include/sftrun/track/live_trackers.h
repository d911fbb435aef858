#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sftrun/config/run_config.h"

/// Sends the metrics of a run to experiment trackers while it trains (`output.report_to`).
namespace sftrun::track {

enum class RunEnd { kFinished, kFailed, kStopped };

struct LiveTrackerOptions {
  config::RunConfig config;  ///< resolved; its output.dir has metrics.jsonl
  double end_s = 10;         ///< that `finish` waits at most for what was not sent
  /// Asked from time to time, by other threads: true ends all at once. Empty: never.
  std::function<bool()> should_end = {};
  std::string guard = "/proc/self/exe";  ///< see launch/command_guard.h
};

/// One thread for each tracker reads metrics.jsonl as rank 0 writes it. Nobody waits for a tracker
/// before the run has ended, and none of its failures is more than a warning: it is tried again with
/// growing delays, from the line that was not sent. Only one batch of lines is in memory.
///
/// A tracked run begins when the run trains. `trackers.json` of the run directory has its id, so that
/// a resumed run continues it: steps that the tracker has are not sent again.
class LiveTrackers {
 public:
  explicit LiveTrackers(LiveTrackerOptions options);
  /// As `finish(RunEnd::kFailed)`.
  ~LiveTrackers();
  LiveTrackers(const LiveTrackers&) = delete;
  LiveTrackers& operator=(const LiveTrackers&) = delete;

  /// Sends the rest and how the run ended, and says what could not be sent.   @pre no rank trains
  void finish(RunEnd end);

 private:
  struct State;
  void note_in_report() const;

  std::unique_ptr<State> state_;  // null: there are none, or they have ended
};

}  // namespace sftrun::track
