#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

/// OpenMP's threads spin before they sleep, because waking takes longer than most waits between two
/// loops. On cores that other programs use too, the thread that is waited for does not run
/// meanwhile: spinning then costs several times the processor time of the work itself.
namespace sftrun::engine {

/// Whether other programs use the cores, judged by the time that threads of this process were ready
/// to run and did not.
class Contention {
 public:
  /// @param share that time over a period, of all threads, in units of the period
  /// @return whether waiting threads should sleep at once
  bool add(double share);

 private:
  bool is_contended_ = false;
  int num_free_ = 0;  // periods in a row
};

/// A team of threads that do nothing. While it exists, OpenMP has more threads than processors, and
/// its waiting threads then spin a hundred times only (GCC's manual, GOMP_SPINCOUNT): no function
/// changes the number of times while a program runs.
class IdleTeam {
 public:
  /// Without memory for its threads it has none.   @param num_threads of OpenMP that compute
  explicit IdleTeam(int num_threads);
  ~IdleTeam();
  IdleTeam(const IdleTeam&) = delete;
  IdleTeam& operator=(const IdleTeam&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable end_;
  bool has_ended_ = false;
  std::thread leader_;  // last: it uses the members above
};

/// Watches this process from a thread, and keeps OpenMP's threads from spinning while other programs
/// use the cores.
class SpinWatch {
 public:
  /// @param num_threads of OpenMP that compute
  explicit SpinWatch(int num_threads);
  bool has_team() const { return has_team_; }

 private:
  void watch(const std::stop_token& stop);

  int num_threads_;
  std::atomic<bool> has_team_{false};
  std::jthread thread_;  // last
};

/// Starts a SpinWatch for the rest of the process, unless there is one, one thread computes, or the
/// user has set OMP_WAIT_POLICY.
void watch_spinning(int num_threads);

/// Seconds that the threads of this process were ready to run and did not; nullopt: the kernel does
/// not tell.
std::optional<double> seconds_ready();

}  // namespace sftrun::engine
