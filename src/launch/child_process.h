#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "sftrun/launch/worker_env.h"
#include "unique_fd.h"

namespace sftrun::launch {

struct ChildSpec {
  std::string executable;
  std::vector<std::string> arguments;  ///< argv, including the name
  Environment environment;             ///< the complete environment, without descriptors
  std::vector<int> cpus;               ///< affinity; empty: inherited
  int activity = -1;                   ///< descriptor of its Activity; -1: none
  /// It keeps standard input and output, and is in this process's group: only that one may read the
  /// terminal.
  bool has_terminal = false;
};

/// A started child and the non-blocking read ends of its pipes.
struct ChildProcess {
  pid_t pid = 0;
  UniqueFd out, err, status;
};

/// Starts a child that leads its own process group (so that a terminal's Ctrl-C reaches only the
/// launcher) and dies with this thread (PR_SET_PDEATHSIG). Its stdin is /dev/null. `has_terminal`
/// makes it another one.
/// @throws DeviceError with the operating system's reason if it cannot be started.
ChildProcess start_child(const ChildSpec& spec);

}  // namespace sftrun::launch
