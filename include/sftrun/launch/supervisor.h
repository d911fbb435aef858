#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/launch/launch_plan.h"

/// Starts one process per worker of this machine, watches them, and never leaves one behind.
namespace sftrun::launch {

struct WorkerCommand {
  std::string executable;              ///< "/proc/self/exe": this program
  std::vector<std::string> arguments;  ///< argv, the name first
};

struct SuperviseOptions {
  LaunchPlan plan;
  Environment environment;  ///< the workers', before torchrun's variables
  WorkerCommand command;
  WorkerCommand restart_command;  ///< after a failure: continues from the last checkpoint
  std::filesystem::path run_dir;  ///< logs/rank-N.log and logs/error-rank-N.json lie in it
  int max_restarts = 0;
  double grace_s = 60;           ///< from a stop signal to SIGKILL: time to write a checkpoint
  double untrained_grace_s = 5;  ///< the same before the first step, when there is nothing to save
  double failure_grace_s = 3;    ///< the same for the others when one has failed
};

/// SFTRUN_GRACE_S where it is set ("90", "2m"). @throws ConfigError if it is no time.
double grace_from_environment(const Environment& env, double otherwise);

/// Runs the workers to their end.
///
/// - The console shows rank 0 and everybody's warnings; on a terminal a live line with rank 0's
/// status.
/// - SIGINT, SIGTERM, SIGUSR1 (and SIGHUP, as SIGTERM) are passed on; workers get `grace_s`. A
/// second one kills them.
/// - A worker that fails ends the others within `failure_grace_s`.
/// - Workers lead process groups of their own, and die with this process however it ends.
///
/// Single-threaded callers only (it forks).
/// @return 0 done, 75 or 130 stopped on request
/// @throws Error with the worker's own code and message for 2, 3 and 4; 5 naming the first failure
/// after `max_restarts`
///         restarts; 4 when the kernel's OOM killer took a worker.
int supervise(const SuperviseOptions& options);

}  // namespace sftrun::launch
