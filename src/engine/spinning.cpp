#include "spinning.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "openmp_threads.h"
#include "sftrun/core/clock.h"

namespace sftrun::engine {
namespace {

constexpr std::chrono::milliseconds kPeriod{200};
// Of an idle machine: waking a thread counts as some percent.
constexpr double kContendedShare = 0.2, kFreeShare = 0.1;
constexpr int kFreePeriods = 5;
constexpr int kMaxTeam = 32;  // a machine with more processors than that has others to offer

}  // namespace

bool Contention::add(double share) {
  num_free_ = share < kFreeShare ? num_free_ + 1 : 0;
  if (share > kContendedShare) is_contended_ = true;
  if (num_free_ >= kFreePeriods) is_contended_ = false;
  return is_contended_;
}

IdleTeam::IdleTeam(int num_threads) {
  const int size = std::max(2, omp_get_num_procs() - num_threads + 2);
  if (size > kMaxTeam) return;
  leader_ = std::thread([this, size] {
    if (!can_start_threads(size)) return;
    std::atomic<int> num_started{0};  // the compiler leaves out an empty region
#pragma omp parallel num_threads(size)
    ++num_started;
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return has_ended_; });
  });
}

IdleTeam::~IdleTeam() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  end_.notify_one();
  if (leader_.joinable()) leader_.join();
}

SpinWatch::SpinWatch(int num_threads)
    : num_threads_(num_threads), thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void SpinWatch::watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any sleep;
  std::optional<IdleTeam> team;
  Contention contention;
  std::optional<double> ready = seconds_ready();
  double time = monotonic_seconds();
  for (std::unique_lock lock(mutex); ready;) {
    sleep.wait_for(lock, stop, kPeriod, [] { return false; });
    if (stop.stop_requested()) return;
    const auto ready_before = std::exchange(ready, seconds_ready());
    const double time_before = std::exchange(time, monotonic_seconds());
    // Threads that ended take their times with them.
    const double seconds = std::max(0.0, ready.value_or(0) - *ready_before);
    const bool is_contended = contention.add(seconds / (time - time_before));
    try {
      if (is_contended && !team) team.emplace(num_threads_);
    } catch (const std::system_error&) {
      return;  // no thread can be started
    }
    if (!is_contended) team.reset();
    has_team_ = team.has_value();
  }
}

void watch_spinning(int num_threads) {
#ifndef __SANITIZE_THREAD__  // which does not know OpenMP's synchronisation
  if (num_threads < 2 || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  static const SpinWatch watch(num_threads);
#endif
}

std::optional<double> seconds_ready() {
  namespace fs = std::filesystem;
  double nanoseconds = 0;
  int num_threads = 0;
  std::error_code code;
  for (fs::directory_iterator task("/proc/self/task", code), end; task != end && !code;
       task.increment(code)) {
    std::ifstream file(task->path() / "schedstat");  // time on a processor, time ready, …
    double on_processor = 0, ready = 0;
    if (!(file >> on_processor >> ready)) continue;  // the thread has ended
    nanoseconds += ready;
    ++num_threads;
  }
  if (num_threads == 0) return std::nullopt;
  return nanoseconds * 1e-9;
}

}  // namespace sftrun::engine
