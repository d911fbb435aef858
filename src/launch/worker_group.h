#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "console.h"
#include "guardian.h"
#include "progress_view.h"
#include "sftrun/launch/supervisor.h"
#include "signal_fd.h"
#include "stall_reporter.h"
#include "stop_progress.h"
#include "worker_process.h"

namespace sftrun::launch {

/// How a group of workers ended.
struct GroupOutcome {
  SuperviseEnd end;  ///< without a failure
  std::optional<Error> failure;
  bool stop_requested = false;
  bool does_not_fit = false;  ///< out of memory in Phase::kFitting
};

/// All workers of this machine, from their start (start_workers.h) to the end of the last one:
/// watches them, passes signals on, and ends the others if one fails. The supervisor makes a new
/// group for each restart.
class WorkerGroup {
 public:
  WorkerGroup(const SuperviseOptions& options, const WorkerCommand& command, int restart,
              Console& console, WarningsShown& warnings, Guardian& guardian,
              const SignalFd& signals);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  GroupOutcome run();

 private:
  enum class State { kRunning, kStopping, kFailing, kKilled };

  void wait_for_news();
  void answer_signals();
  void answer_stop(int signal);
  std::string words_of_stop(int signal) const;
  void pause();
  void reap();
  bool has_died_of_stop(const WorkerEnd& end) const;
  bool is_at_fault(const WorkerEnd& end) const;
  void end_the_others();
  void mind_the_deadline();
  void report_stalls();
  void signal_all(int signal) const;
  void kill_all();
  int poll_timeout_ms() const;
  GroupOutcome outcome();
  GroupOutcome failed(const std::vector<WorkerEnd>& ends, const WorkerEnd& first) const;

  const SuperviseOptions& options_;
  Console& console_;
  Guardian& guardian_;
  const SignalFd& signals_;
  StallReporter stalls_;
  StopProgress progress_;  ///< after a stop signal
  State state_ = State::kRunning;
  int stop_signal_ = 0;            ///< the first one
  double stop_time_ = 0;           ///< monotonic
  double deadline_ = 0;            ///< monotonic, of SIGKILL; 0: none
  double teardown_time_ = 0;       ///< since the epoch, when the others were told to end; 0: never
  double last_end_time_ = 0;       ///< since the epoch
  double first_end_ = 0;           ///< monotonic; 0: none has ended
  bool wants_at_once_ = false;     ///< a second signal came
  uint64_t oom_kills_before_ = 0;  ///< counted before the workers start
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  ProgressView view_;
};

}  // namespace sftrun::launch
