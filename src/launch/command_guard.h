#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>

/// What a run and the guard of a command tell each other, over a socket.
namespace sftrun::launch {

constexpr int kGuardSocket = STDERR_FILENO + 1;

/// To the guard. The end of the socket means kKill, too.
enum class GuardOrder : uint8_t {
  kEnd = 1,   ///< SIGTERM, and SIGKILL to what is left after `kCommandGraceS`
  kKill = 2,  ///< SIGKILL
  /// Before the guard starts, or never: SIGKILL to what the command leaves, once it has ended. Without it that goes on.
  kKillRest = 3,
};
constexpr double kCommandGraceS = 2;

/// From the guard, at once: the run ends the command where somebody kills the guard.
struct CommandStart {
  int error = 0;      ///< errno with which the command could not be started; 0: it was
  pid_t command = 0;  ///< also its process group
};

/// From the guard, if the command was started: the last thing that it does.
struct CommandEnd {
  int wait_status = 0;  ///< as of waitpid
};

}  // namespace sftrun::launch
