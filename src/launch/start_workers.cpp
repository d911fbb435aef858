#include "start_workers.h"

#include "sftrun/core/presence.h"

namespace sftrun::launch {
namespace {

std::unique_ptr<WorkerProcess> start_worker(const SuperviseOptions& options,
                                            const WorkerCommand& command, int local_rank,
                                            int restart, int port, Console& console,
                                            WarningsShown& warnings) {
  const LaunchPlan& plan = options.plan;
  const int rank = plan.rank_of(local_rank);
  const auto logs = options.run_dir / "logs";
  WorkerProcess::Options worker{.rank = rank,
                                .local_rank = local_rank,
                                .filter = {.rank = rank,
                                           .is_main = local_rank == 0,
                                           .show_rank = plan.world_size() > 1,
                                           .verbosity = log::verbosity(),
                                           .hide_steps = console.is_terminal(),
                                           .warnings = &warnings},
                                .log = logs / fmt::format("rank-{}.log", rank),
                                .error_file = logs / fmt::format("error-rank-{}.json", rank)};
  std::error_code ignored;
  std::filesystem::remove(worker.error_file, ignored);
  ChildSpec spec{.executable = command.executable,
                 .arguments = command.arguments,
                 .environment = worker_environment(plan, options.environment, local_rank, port)};
  spec.environment["SFTRUN_ERROR_FILE"] = absolute_path(worker.error_file).string();
  spec.environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart);
  spec.environment["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options.max_restarts);
  spec.has_terminal = options.main_has_terminal && local_rank == 0;
  if (!plan.cpus.empty()) spec.cpus = plan.cpus[static_cast<size_t>(local_rank)];
  return std::make_unique<WorkerProcess>(spec, worker, console);
}

}  // namespace

std::vector<std::unique_ptr<WorkerProcess>> start_workers(const SuperviseOptions& options,
                                                          const WorkerCommand& command, int restart,
                                                          Console& console, WarningsShown& warnings,
                                                          Guardian& guardian) {
  const LaunchPlan& plan = options.plan;
  const int port = plan.master_port != 0 ? plan.master_port : pick_free_port();
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (int local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    workers.push_back(start_worker(options, command, local_rank, restart, port, console, warnings));
    guardian.watch(workers.back()->pid());
  }
  return workers;
}

}  // namespace sftrun::launch
