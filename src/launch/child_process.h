#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "sftrun/launch/worker_env.h"
#include "unique_fd.h"

namespace sftrun::launch {

struct ChildSpec {
  std::string executable;
  std::vector<std::string> arguments;  ///< argv, the name first
  Environment environment;             ///< all of it; SFTRUN_STATUS_FD is added
  std::vector<int> cpus;               ///< affinity; empty: inherited
};

/// A started child with the reading ends of its pipes, all non-blocking.
struct ChildProcess {
  pid_t pid = 0;
  UniqueFd out, err, status;
};

/// Starts a child that leads its own process group (so that a terminal's Ctrl-C reaches only us)
/// and dies with this process (PR_SET_PDEATHSIG). Its stdin is /dev/null. Single-threaded callers
/// only.
/// @throws DeviceError when it cannot be started, with the operating system's reason.
ChildProcess start_child(const ChildSpec& spec);

}  // namespace sftrun::launch
