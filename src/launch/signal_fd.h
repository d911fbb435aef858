#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "unique_fd.h"

namespace sftrun::launch {

/// Reads the supervisor's signals from a descriptor; SIGPIPE is blocked, too. The destructor
/// restores the previous mask.
class SignalFd {
 public:
  SignalFd() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGTSTP, SIGWINCH, SIGCHLD})
      sigaddset(&set, signal);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_)
      throw DeviceError(std::string("cannot read signals: ") + std::strerror(errno), "signalfd");
    sigaddset(&set, SIGPIPE);
    ::sigprocmask(SIG_BLOCK, &set, &before_);
  }
  ~SignalFd() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;

  int get() const { return fd_.get(); }
  std::optional<int> next() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  UniqueFd fd_;
  sigset_t before_;
};

}  // namespace sftrun::launch
