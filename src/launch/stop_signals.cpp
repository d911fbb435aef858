#include "sftrun/launch/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <ctime>

#include "ignored_signals.h"
#include "sftrun/core/error.h"

namespace sftrun::launch {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1};

// A signal handler can use only static variables; all are lock-free atomics.
std::atomic<int> first_signal{0};
std::atomic<int64_t> first_time_ns{0};
std::array<struct sigaction, kStopSignals.size()> former_actions;
std::atomic<bool> installed{false};
std::atomic<bool> ignores_keyboard{false};  // started in the background
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_stop_signal(int signal, siginfo_t* info, void*) {
  if (signal == SIGINT && ignores_keyboard && is_of_keyboard(info->si_code)) return;
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
  ignores_keyboard = is_ignored(SIGINT);
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (const int signal : kStopSignals) sigaddset(&action.sa_mask, signal);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], nullptr, &former_actions[i]);
    const bool stays_ignored = kStopSignals[i] == SIGUSR1 && is_ignored(SIGUSR1);
    if (!stays_ignored) ::sigaction(kStopSignals[i], &action, nullptr);
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
