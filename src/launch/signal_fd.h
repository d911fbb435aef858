#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "ignored_signals.h"
#include "unique_fd.h"

namespace sftrun::launch {

/// Reads the supervisor's signals from a descriptor; SIGPIPE is blocked, too. The destructor
/// restores the previous mask. Signals that the process was started to ignore stay ignored, except
/// SIGTERM, and SIGINT from another process than the terminal: a descriptor would also read them.
class SignalFd {
 public:
  /// @param leaves_keyboard Ctrl-C of the terminal is for another process
  explicit SignalFd(bool leaves_keyboard = false)
      : ignores_keyboard_(leaves_keyboard || is_ignored(SIGINT)) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, signal);
    for (const int signal : {SIGUSR1, SIGHUP, SIGTSTP, SIGWINCH})
      if (!is_ignored(signal)) sigaddset(&set, signal);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) {
      const int error = errno;
      throw DeviceError(std::string("cannot read signals: ") + std::strerror(error), "signalfd",
                        fix_for_descriptors(error));
    }
    sigaddset(&set, SIGPIPE);
    ::sigprocmask(SIG_BLOCK, &set, &before_);
  }
  ~SignalFd() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;

  int get() const { return fd_.get(); }
  std::optional<int> next() const {
    for (signalfd_siginfo info{}; ::read(fd_.get(), &info, sizeof info) == sizeof info;) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGINT && ignores_keyboard_ && is_of_keyboard(info.ssi_code)) continue;
      return signal;
    }
    return std::nullopt;
  }

 private:
  bool ignores_keyboard_;
  UniqueFd fd_;
  sigset_t before_;
};

}  // namespace sftrun::launch
