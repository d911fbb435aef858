#include "sftrun/launch/supervisor.h"

#include "console.h"
#include "guardian.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/units.h"
#include "sftrun/core/warnings.h"
#include "signal_fd.h"
#include "worker_group.h"

namespace sftrun::launch {
namespace {

bool may_restart(const GroupOutcome& outcome, int restarts, int max_restarts) {
  return !outcome.stop_requested && outcome.failure->code() == ExitCode::kWorkerFailed &&
         restarts < max_restarts;
}

/// Checks whether log files were removed: writing to a removed file does not fail.
void require_logs(const SuperviseOptions& options) {
  std::string missing;
  for (int local_rank = 0; local_rank < options.plan.local_world_size; ++local_rank) {
    const std::string name = fmt::format("logs/rank-{}.log", options.plan.rank_of(local_rank));
    if (!leads_to_file(options.run_dir / name)) missing += (missing.empty() ? "" : ", ") + name;
  }
  if (missing.empty()) return;
  throw DataError("removed from the run directory during the run: " + missing,
                  options.run_dir.string(),
                  "the result is complete; only the removed files are lost");
}

}  // namespace

double grace_from_environment(const Environment& env, double otherwise) {
  const auto setting = env.find("SFTRUN_GRACE_S");
  if (setting == env.end()) return otherwise;
  const auto seconds = parse_duration_s(setting->second);
  if (!seconds) {
    throw ConfigError(fmt::format("SFTRUN_GRACE_S={} is not a duration", setting->second),
                      "environment variable SFTRUN_GRACE_S",
                      "write seconds (90) or a duration (2m)");
  }
  return *seconds;
}

SuperviseEnd supervise(const SuperviseOptions& options) {
  const LaunchPlan& plan = options.plan;
  if (plan.master_port != 0 && plan.node_rank == 0 && !is_port_free(plan.master_port)) {
    throw ConfigError(fmt::format("port {} is already in use", plan.master_port), "--master-port",
                      "choose another port, or remove the flag to get a free one");
  }
  make_directories(options.run_dir / "logs");
  remove_temporaries(options.run_dir / "logs");
  const SignalFd signals(/*leaves_keyboard=*/options.main_has_terminal);
  Guardian guardian;
  Console console(Console::detect());
  WarningsShown warnings(log::written_warnings());
  std::optional<SmallerStart> smaller;
  for (int restarts = 0;;) {
    const WorkerCommand& first = smaller ? smaller->command : options.command;
    const WorkerCommand& later = smaller ? smaller->restart_command : options.restart_command;
    GroupOutcome outcome = WorkerGroup(options, restarts == 0 ? first : later, restarts, console,
                                       warnings, guardian, signals)
                               .run();
    if (!outcome.failure && outcome.end.exit_code == 0) require_logs(options);
    if (!outcome.failure) return outcome.end;
    if (outcome.does_not_fit && !outcome.stop_requested && !smaller && options.start_smaller &&
        (smaller = options.start_smaller())) {
      console.print(Stream::kErr, smaller->notice);
      continue;
    }
    if (!may_restart(outcome, restarts, options.max_restarts)) throw std::move(*outcome.failure);
    console.print(Stream::kErr, outcome.failure->what());
    console.print(Stream::kErr, fmt::format("restart {} of {}, from the last checkpoint",
                                            restarts + 1, options.max_restarts));
    ++restarts;
  }
}

}  // namespace sftrun::launch
