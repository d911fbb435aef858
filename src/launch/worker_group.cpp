#include "worker_group.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>

#include "oom.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/stop_signals.h"
#include "start_workers.h"

namespace sftrun::launch {
namespace {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

using Workers = std::vector<std::unique_ptr<WorkerProcess>>;

bool any_running(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker->is_running(); });
}

bool is_generating(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(), [](const auto& worker) {
    const auto& status = worker->last_status();
    return status && status->phase == Phase::kGenerating;
  });
}

/// Whether rank 0 has saved everything, and waits for the user's commands (`callbacks`).
bool runs_commands(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(), [](const auto& worker) {
    const auto& status = worker->last_status();
    return worker->is_running() && status && status->phase == Phase::kCommands;
  });
}

/// Whether a worker may have something to save: it reported that it trains, or has trained.
bool has_trained(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker->has_trained(); });
}

/// Whether the worker ended because it was told to after another had failed. Not if it crashed,
/// even if the crash was noticed later.
/// @param teardown_time since the epoch, when it was told; 0: never
bool was_asked_to_stop(const WorkerProcess& worker, double teardown_time) {
  const WorkerEnd& end = *worker.end();
  const double time = end.error ? end.error->time : end.time;
  if (teardown_time == 0 || time <= teardown_time) return false;
  if (!WIFSIGNALED(end.wait_status)) return true;
  const int signal = WTERMSIG(end.wait_status);
  return signal == SIGTERM || (signal == SIGKILL && worker.was_killed());
}

/// 130 or 75 if a worker stopped on request, 0 if all were done before the request reached them.
/// @param stop_signal 0: none came
int stop_code(const std::vector<WorkerEnd>& ends, int stop_signal) {
  if (std::all_of(ends.begin(), ends.end(),
                  [](const WorkerEnd& end) { return has_exited_with(end, 0); }))
    return 0;
  if (stop_signal != 0) return exit_code_of_stop_signal(stop_signal);
  const auto stopped = std::find_if(ends.begin(), ends.end(), has_stopped);
  return WEXITSTATUS(stopped->wait_status);
}

}  // namespace

WorkerGroup::WorkerGroup(const SuperviseOptions& options, const WorkerCommand& command, int restart,
                         Console& console, WarningsShown& warnings, Guardian& guardian,
                         const SignalFd& signals)
    : options_(options),
      console_(console),
      guardian_(guardian),
      signals_(signals),
      stalls_(options.stall_s, options.plan.nnodes == 1),
      progress_(options.grace_s, options.plan.nnodes == 1),
      oom_kills_before_(num_oom_kills()),
      workers_(start_workers(options, command, restart, console, warnings, guardian)),
      view_(workers_, console) {}

WorkerGroup::~WorkerGroup() {
  std::vector<pid_t> groups;
  for (const auto& worker : workers_) {
    if (worker->is_running()) groups.push_back(worker->pid());
  }
  workers_.clear();
  for (const pid_t group : groups) guardian_.release(group);
}

GroupOutcome WorkerGroup::run() {
  while (any_running(workers_)) {
    wait_for_news();
    answer_signals();
    for (const auto& worker : workers_) worker->read_pipes();
    view_.show();
    reap();
    mind_the_deadline();
    report_stalls();
  }
  view_.finish();
  return outcome();
}

void WorkerGroup::wait_for_news() {
  std::vector<pollfd> fds{{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& worker : workers_) {
    for (const int fd : worker->descriptors())
      fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  ::poll(fds.data(), fds.size(),
         poll_timeout_ms());  // also if interrupted: everything is checked below
}

int WorkerGroup::poll_timeout_ms() const {
  double seconds = deadline_ == 0 ? stalls_.period_s() : deadline_ - monotonic_seconds();
  if (state_ == State::kStopping) seconds = std::min(seconds, progress_.period_s());
  seconds = view_.period_s(seconds);
  return static_cast<int>(std::clamp(std::ceil(seconds * 1e3), 0.0, 60e3));
}

void WorkerGroup::answer_signals() {
  while (const auto signal = signals_.next()) {
    switch (*signal) {
      case SIGCHLD:
        break;  // every iteration checks the children
      case SIGTSTP:
        pause();
        break;
      case SIGWINCH:
        console_.redraw();
        break;
      case SIGHUP:
        answer_stop(SIGTERM);
        break;
      default:
        answer_stop(*signal);
    }
  }
}

void WorkerGroup::answer_stop(int signal) {
  const double now = monotonic_seconds();
  if (stop_signal_ != 0 && now - stop_time_ < StopSignals::kSameRequestS)
    return;  // schedulers send the same signal several times
  if (state_ != State::kRunning) {
    console_.print(Stream::kErr, signal_name(signal) + " again: stopping now");
    if (stop_signal_ == 0) stop_signal_ = signal;
    wants_at_once_ = true;
    kill_all();
    return;
  }
  state_ = State::kStopping;
  stop_signal_ = signal;
  stop_time_ = now;
  deadline_ =
      now + (has_trained(workers_) ? options_.grace_s
                                   : std::min(options_.grace_s, options_.untrained_grace_s));
  console_.print(Stream::kErr, signal_name(signal) + ": " + words_of_stop(signal));
  signal_all(signal);
}

std::string WorkerGroup::words_of_stop(int signal) const {
  if (has_trained(workers_)) {
    return fmt::format(
        "stopping {}; {} again to stop now",
        runs_commands(workers_) ? "when the command of `callbacks` has ended" : "with a checkpoint",
        signal == SIGINT ? "press Ctrl-C" : "send it");
  }
  if (is_generating(workers_)) return "stopping; finished work is kept";
  return options_.words.unsaved.empty() ? "stopping" : "stopping; " + options_.words.unsaved;
}

/// Ctrl-Z: the terminal's signal does not reach the workers, because they are in their own groups.
void WorkerGroup::pause() {
  signal_all(SIGSTOP);
  view_.pause();                // the shell writes below
  ::kill(::getpid(), SIGSTOP);  // returns after SIGCONT
  signal_all(SIGCONT);
  stalls_.restart();
}

void WorkerGroup::reap() {
  for (const auto& worker : workers_) {
    if (!worker->reap()) continue;
    guardian_.release(worker->pid());
    last_end_time_ = unix_seconds();
    if (first_end_ == 0) first_end_ = monotonic_seconds();
    if (has_died_of_stop(*worker->end()))
      kill_all();  // it had no handler yet, so there is nothing to save
    else if (is_at_fault(*worker->end()) && state_ != State::kFailing)
      end_the_others();
  }
}

bool WorkerGroup::has_died_of_stop(const WorkerEnd& end) const {
  return state_ == State::kStopping && WIFSIGNALED(end.wait_status) &&
         WTERMSIG(end.wait_status) == stop_signal_;
}

bool WorkerGroup::is_at_fault(const WorkerEnd& end) const {
  if (!has_failed(end) || state_ == State::kKilled) return false;
  // A rank that stopped on request closes its connections; errors of other ranks about that are
  // not failures.
  const bool some_stopped = std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker->end() && has_stopped(*worker->end());
  });
  return !(stop_signal_ != 0 && some_stopped && end.error && end.error->peer_lost);
}

void WorkerGroup::end_the_others() {
  const bool already_told =
      state_ == State::kStopping;  // a second signal would interrupt their checkpoint
  state_ = State::kFailing;
  teardown_time_ = unix_seconds();
  deadline_ = monotonic_seconds() + options_.failure_grace_s;
  if (!already_told) signal_all(SIGTERM);
}

void WorkerGroup::mind_the_deadline() {
  if (deadline_ == 0) return;
  const double now = monotonic_seconds();
  const bool is_stopping = state_ == State::kStopping;
  const bool saves = is_stopping && has_trained(workers_) && !runs_commands(workers_);
  if (saves) deadline_ = std::max(deadline_, progress_.last(workers_, now) + options_.grace_s);
  if (now < deadline_) return;
  if (is_stopping && runs_commands(workers_)) {
    console_.print(Stream::kErr,
                   fmt::format("the command of `callbacks` has not ended within {}: ending it; the "
                               "checkpoint is complete",
                               format_duration(options_.grace_s)));
  } else if (saves) {
    console_.print(Stream::kErr,
                   fmt::format("no progress for {}: stopping now; the last checkpoint is kept "
                               "(SFTRUN_GRACE_S sets this time)",
                               format_duration(options_.grace_s)));
  }
  kill_all();
}

void WorkerGroup::kill_all() {
  if (state_ != State::kFailing) state_ = State::kKilled;
  deadline_ = 0;
  for (const auto& worker : workers_) worker->kill_now();
}

void WorkerGroup::report_stalls() {
  if (state_ != State::kRunning) return;
  if (const auto report = stalls_.check(workers_, monotonic_seconds()))
    console_.print(Stream::kErr, *report);
}

void WorkerGroup::signal_all(int signal) const {
  for (const auto& worker : workers_) worker->signal(signal);
}

GroupOutcome WorkerGroup::outcome() {
  std::vector<WorkerEnd> ends;
  const bool oom_happened = num_oom_kills() > oom_kills_before_;
  for (const auto& worker : workers_) {
    WorkerEnd end = *worker->end();
    end.was_asked_to_stop = was_asked_to_stop(*worker, teardown_time_);
    const bool by_sigkill = WIFSIGNALED(end.wait_status) && WTERMSIG(end.wait_status) == SIGKILL;
    end.oom_killed = by_sigkill && oom_happened && !worker->was_killed();
    ends.push_back(std::move(end));
  }
  const WorkerEnd* first = first_failure(ends);
  if (first && is_at_fault(*first)) return failed(ends, *first);
  return {.end = {.exit_code = stop_code(ends, stop_signal_), .wants_at_once = wants_at_once_}};
}

GroupOutcome WorkerGroup::failed(const std::vector<WorkerEnd>& ends, const WorkerEnd& first) const {
  std::vector<int> stopped;
  for (const WorkerEnd& end : ends) {
    if (&end != &first && end.was_asked_to_stop) stopped.push_back(end.rank);
  }
  const bool asks_for_fix = first.oom_killed && options_.memory_fix;
  Error failure =
      describe_failure(first, stopped, last_end_time_ - first.time, stalls_.recent(first_end_),
                       asks_for_fix ? options_.memory_fix() : "", options_.words);
  const bool was_fitting = first.last_status && first.last_status->phase == Phase::kFitting;
  const bool does_not_fit = was_fitting && failure.code() == ExitCode::kOutOfMemory;
  return {.failure = std::move(failure),
          .stop_requested = stop_signal_ != 0,
          .does_not_fit = does_not_fit};
}

}  // namespace sftrun::launch
