#pragma once

/// Handling of SIGINT, SIGTERM and SIGUSR1 in a worker: finish the step, write a checkpoint, exit.
namespace sftrun::launch {

/// Installs the handlers (only one object per process at a time); the destructor restores the
/// previous ones. Ctrl-C of the terminal, if the process was started in the background, and a SIGUSR1
/// that it was started to ignore, stay ignored. The first signal only sets a flag. A second one ends the process at once with the
/// first one's exit code, by _exit; copies that arrive within kSameRequestS count as the first
/// (schedulers signal both the launcher, which forwards, and every process of the job). `requested`
/// and `exit_code` may be called from any thread.
class StopSignals {
 public:
  static constexpr double kSameRequestS = 0.5;

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const { return signal() != 0; }
  int signal() const;     ///< the first signal; 0: none yet
  int exit_code() const;  ///< 130 for SIGINT, 75 for SIGTERM and SIGUSR1, 0: no signal yet
};

/// Whether the StopSignals of this process have seen a signal; false without one. For any thread.
bool stop_requested();

/// 130 for SIGINT, else 75.
int exit_code_of_stop_signal(int signal);

}  // namespace sftrun::launch
