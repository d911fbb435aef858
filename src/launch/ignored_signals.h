#pragma once

#include <signal.h>

namespace sftrun::launch {

/// Whether this process was started to ignore the signal, as nohup does with SIGHUP, and has not
/// changed that.
inline bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

/// Shells start background jobs with SIGINT ignored, so that Ctrl-C ends only what is in the
/// foreground. A SIGINT that a process sends to such a job (`kill -INT`) is a request all the same.
inline bool is_of_keyboard(int code) {
  return code == SI_KERNEL;
}

}  // namespace sftrun::launch
