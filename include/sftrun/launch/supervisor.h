#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/launch/launch_plan.h"

/// Starts one process per worker of this machine and supervises them. No process is left behind.
namespace sftrun::launch {

struct WorkerCommand {
  std::string executable;              ///< "/proc/self/exe": this program
  std::vector<std::string> arguments;  ///< argv, including the name
};

/// A start with smaller micro-batches.
struct SmallerStart {
  std::string notice;  ///< what is changed, for the user
  WorkerCommand command, restart_command;
};

/// How messages name what the workers do.
struct WorkWords {
  std::string name = "training";
  /// What to do after a failure whose cause is unknown.
  std::string fix =
      "see the log; the same command resumes from the last checkpoint, if there is one";
  /// Of a stop before anything was kept; empty: there is nothing to say.
  std::string unsaved = "no step has been trained, so there is nothing to save";
  /// What to do where the kernel ended a worker for its memory, if no plan says it.
  std::string less_memory =
      "lower train.batch_size and raise train.grad_accum, lower model.max_seq_len, set "
      "train.gradient_checkpointing: true";
};

struct SuperviseOptions {
  LaunchPlan plan;
  Environment environment;  ///< of the workers, without torchrun's variables
  WorkerCommand command;
  WorkerCommand restart_command;  ///< after a failure: continues from the last checkpoint
  std::filesystem::path run_dir;  ///< has logs/rank-N.log and logs/error-rank-N.json
  int max_restarts = 0;
  double stall_s = 30;           ///< without progress, then the ranks at fault are named
  double grace_s = 60;           ///< after a stop signal: without progress until SIGKILL
  double untrained_grace_s = 5;  ///< from a stop signal to SIGKILL where there is nothing to save
  double failure_grace_s = 3;    ///< the same for the other workers after one has failed
  /// What to do if the kernel ends a worker for its memory; called then. Empty: general advice.
  std::function<std::string()> memory_fix = {};
  /// Called once, if a worker ran out of memory in Phase::kFitting. nullopt: the run ends.
  std::function<std::optional<SmallerStart>()> start_smaller = {};
  WorkWords words = {};
  /// The first worker of this machine reads this process's standard input and writes to its standard
  /// output, and Ctrl-C of the terminal is for that worker alone.
  bool main_has_terminal = false;
};

/// How workers ended without a failure.
struct SuperviseEnd {
  int exit_code = 0;           ///< 0 done, 75 or 130 stopped on request
  bool wants_at_once = false;  ///< a second signal came
};

/// SFTRUN_GRACE_S if it is set ("90", "2m"). @throws ConfigError if it is not a duration.
double grace_from_environment(const Environment& env, double otherwise);

/// Runs the workers until they end.
///
/// - The console shows the lines of rank 0 and the warnings of all ranks; on a terminal also a
///   live view with the status of the workers. SFTRUN_LOG may change that (core/verbosity.h).
/// - SIGINT, SIGTERM, SIGUSR1 (and SIGHUP, as SIGTERM) are passed on. Workers that have trained then
///   have the time that they need for a checkpoint, and are killed after `grace_s` in which none of
///   them made progress. A second signal kills them at once. SIGHUP and SIGUSR1 that this process was
///   started to ignore (nohup) stay ignored, and SIGINT of the terminal (a shell's background job).
/// - Nobody waits for a console that nobody reads (core/console_writer.h).
/// - If a worker fails, the others are ended within `failure_grace_s`.
/// - When workers have waited for another for `stall_s`, the console names it, what it does and
///   since when, and its stack.
/// - If the longest micro-batch does not fit, the run starts once more with what `start_smaller`
///   returns, which does not count as a restart.
/// - Each worker leads its own process group, and is killed when this process ends.
///
/// It forks, so no other thread of the process may be needed by the children.
/// @throws Error with the worker's own code and message for 2, 3 and 4; 5 with the first failure,
/// after `max_restarts` restarts; 4 if the kernel's OOM killer killed a worker.
SuperviseEnd supervise(const SuperviseOptions& options);

}  // namespace sftrun::launch
