#include "sftrun/launch/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <ctime>

#include "sftrun/core/error.h"

namespace sftrun::launch {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1};

// A signal handler can use only static variables; all are lock-free atomics.
std::atomic<int> first_signal{0};
std::atomic<int64_t> first_time_ns{0};
std::array<struct sigaction, kStopSignals.size()> former_actions;
std::atomic<bool> installed{false};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_stop_signal(int signal) {
  const int saved_errno = errno;
  const int64_t now = monotonic_ns();
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_time_ns = now;
  } else if (first_time_ns != 0 &&
             static_cast<double>(now - first_time_ns) * 1e-9 > StopSignals::kSameRequestS) {
    ::_exit(exit_code_of_stop_signal(first_signal));
  }
  errno = saved_errno;
}

}  // namespace

bool stop_requested() {
  return installed && first_signal != 0;
}

int exit_code_of_stop_signal(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kStopped);
}

StopSignals::StopSignals() {
  SFTRUN_CHECK(!installed.exchange(true));
  first_signal = 0;
  first_time_ns = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kStopSignals) sigaddset(&action.sa_mask, signal);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &action, &former_actions[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &former_actions[i], nullptr);
  }
  installed = false;
}

int StopSignals::signal() const {
  return first_signal;
}

int StopSignals::exit_code() const {
  const int signal = first_signal;
  return signal == 0 ? 0 : exit_code_of_stop_signal(signal);
}

}  // namespace sftrun::launch
