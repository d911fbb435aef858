#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/launch/run_lock.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/launch/supervisor.h"
#include "temporary_folder.h"

/// Starts the processes of commands that divide records among them, or have a model together.
namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

/// Whether the processes have a model together; else each has a copy of it.
bool divides_model(const RecordsCommand& command) {
  const auto& parallel = command.ranks.parallel;
  return parallel && parallel->strategy != "device_map";
}

launch::LaunchRequest records_launch(const RecordsCommand& command,
                                     const launch::Environment& env) {
  launch::LaunchRequest request = command.launch.request();
  // Copies exchange only numbers of records, over Gloo.
  request.may_share_gpus = !divides_model(command) && env.contains("SFTRUN_SHARE_GPUS");
  return request;
}

/// @throws ConfigError if one process would have the whole model
void require_processes(const RecordsCommand& command, const launch::LaunchPlan& plan) {
  if (plan.world_size() > 1 || !divides_model(command)) return;
  throw ConfigError("the model would be divided over processes, and there is one",
                    "--strategy, --tp and --pp on the command line",
                    "add --nproc-per-node with their number, or leave these flags out");
}

/// What to do about a worker whose memory was too much for the machine.
std::string less_memory(const std::string& command) {
  if (command == "generate") return "lower --batch-size or --max-new-tokens, shorten the prompts";
  if (command == "eval") return "lower --batch-size or --max-new-tokens, use --no-generate";
  if (command == "serve") return "lower --cache-memory, --batch-size or --max-model-len";
  if (command == "chat") return "keep conversations shorter (/reset), lower --max-new-tokens";
  return "shorten the longest records";
}

/// Of generate with a file for its answers, what is finished is kept.
launch::WorkWords words_of(const RecordsCommand& command) {
  const bool resumes = !command.has_temporary_folder;
  return {.name = command.name,
          .fix = resumes ? "see the log; rerun the same command to add the missing records"
                         : "see the log, and repeat the command",
          .unsaved = "",
          .less_memory = less_memory(command.name)};
}

/// Starts the processes of this machine, and gives them the request in a file.
int launch_processes(const RecordsCommand& command, const launch::LaunchPlan& plan,
                     const launch::Environment& env) {
  RanksRequest ranks = command.ranks;
  ranks.compute.device = plan.workers_device;
  const fs::path file = command.folder / fmt::format("request-{}.json", plan.node_rank);
  write_file_atomically(file, command.request(ranks).dump());
  const launch::WorkerCommand worker{
      .executable = "/proc/self/exe",
      .arguments = {"sftrun", command.name, "--worker-request", file.string()}};
  log::info("{}", launch::describe(plan));
  const int code = launch::supervise({.plan = plan,
                                      .environment = env,
                                      .command = worker,
                                      .restart_command = worker,
                                      .run_dir = command.folder,
                                      .grace_s = launch::grace_from_environment(
                                          env, launch::SuperviseOptions{}.grace_s),
                                      .words = words_of(command),
                                      .main_has_terminal = command.has_terminal})
                       .exit_code;
  const fs::path result = command.folder / "result";
  if (code == 0 && leads_to_file(result)) fmt::print("{}", read_text_file(result));
  return code;
}

int run_in_this_process(const RecordsCommand& command, const launch::LaunchPlan& plan) {
  if (!plan.gpus.empty())
    ::setenv("CUDA_VISIBLE_DEVICES", plan.cuda_visible_devices.c_str(), /*overwrite=*/1);
  return run_in_engine(command.name, command.request(command.ranks));
}

/// Of a command that is complete, or of one process that has kept nothing. On several nodes others
/// may still write their logs.
bool is_folder_done_with(const fs::path& folder, const launch::LaunchPlan& plan, int code) {
  if (plan.nnodes > 1) return false;
  return code == 0 || (plan.world_size() == 1 && !leads_to_file(folder / "settings.json"));
}

}  // namespace

namespace {

int run_in_folder(const RecordsCommand& asked) {
  const launch::Environment env = launch::current_environment();
  RecordsCommand command = asked;
  if (!command.folder.empty()) command.ranks.folder = absolute_path(command.folder).string();
  if (const auto external = launch::external_worker(env, command.launch.asks_for_processes())) {
    for (const auto& [name, value] : external->variables)
      ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    return run_in_engine(command.name, command.request(command.ranks));
  }
  const bool is_one_process = command.folder.empty();
  const bool has_device_map = command.ranks.parallel && !divides_model(command);
  if ((is_one_process || has_device_map) && !command.launch.asks_for_processes())
    command.launch.nproc_per_node = "1";
  const launch::LaunchPlan plan =
      launch::make_plan(records_launch(command, env), launch::this_machine(has_cuda_kernels()));
  require_processes(command, plan);
  if (is_one_process && plan.world_size() > 1) {
    throw ConfigError("several processes need files for input and output", "--input and --output",
                      "name files, or leave the launch flags out");
  }
  if (is_one_process) return run_in_this_process(command, plan);
  int code = 0;
  {
    const launch::RunLock lock(command.folder, plan.node_rank, "--output");
    code = plan.world_size() == 1 ? run_in_this_process(command, plan)
                                  : launch_processes(command, plan, env);
  }
  std::error_code ignored;
  if (is_folder_done_with(command.folder, plan, code)) fs::remove_all(command.folder, ignored);
  return code;
}

}  // namespace

int run_on_devices(const RecordsCommand& asked) {
  if (!asked.has_temporary_folder) return run_in_folder(asked);
  TemporaryFolder folder(asked.name);
  RecordsCommand command = asked;
  command.folder = folder.path();
  try {
    return run_in_folder(command);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kWorkerFailed) folder.keep();  // the error names a log in it
    throw;
  }
}

}  // namespace sftrun::app
