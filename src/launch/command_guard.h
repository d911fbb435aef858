#pragma once

#include <unistd.h>

#include <cstdint>

/// What a run and the guard of a command tell each other, over a socket.
namespace sftrun::launch {

constexpr int kGuardSocket = STDERR_FILENO + 1;

/// To the guard. The end of the socket means kKill, too.
enum class GuardOrder : uint8_t {
  kEnd = 1,   ///< SIGTERM, and SIGKILL to what is left after `kCommandGraceS`
  kKill = 2,  ///< SIGKILL
};
constexpr double kCommandGraceS = 2;

/// From the guard: the last thing that it does.
struct GuardReport {
  int start_error = 0;  ///< errno with which the command could not be started; 0: it was
  int wait_status = 0;  ///< of the command, as of waitpid
};

}  // namespace sftrun::launch
