#pragma once

#include <memory>
#include <vector>

#include "console.h"
#include "guardian.h"
#include "sftrun/launch/supervisor.h"
#include "worker_process.h"

namespace sftrun::launch {

/// Starts the workers of this machine, in the order of their local ranks. Each has a log, and a file
/// for its error, in the run directory, and the guardian watches it.
/// @param restart how often the group was started before   @param warnings those shown so far
std::vector<std::unique_ptr<WorkerProcess>> start_workers(const SuperviseOptions& options,
                                                          const WorkerCommand& command, int restart,
                                                          Console& console, WarningsShown& warnings,
                                                          Guardian& guardian);

}  // namespace sftrun::launch
