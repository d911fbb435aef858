#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/hub/settings.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/launch/machine_check.h"
#include "sftrun/launch/scheduler_env.h"
#include "sftrun/launch/supervisor.h"
#include "temporary_folder.h"
#include "torch_location.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using launch::Check;
using launch::Verdict;

/// What a run on this machine would be.
struct DistributedState {
  std::string started_by = "sftrun";  ///< or "torchrun", "Slurm", "MPI"
  int world_size = 1, rank = 0, nnodes = 1, node_rank = 0;
  std::string rendezvous;  ///< "127.0.0.1:29500"; empty: a free port of this machine
  std::vector<std::string> lines;
};

struct Diagnosis {
  std::vector<Check> checks;
  DistributedState distributed;
  std::optional<AllReduceAnswer> all_reduce;  ///< nullopt: was not run here

  size_t count(Verdict verdict) const {
    return static_cast<size_t>(std::count_if(
        checks.begin(), checks.end(), [&](const Check& one) { return one.verdict == verdict; }));
  }
};

Check engine_check() {
  const auto engine = find_engine();
  if (!engine)
    return {"engine", Verdict::kProblem, "libsftrun_engine.so is not installed",
            "build it: make build"};
  const std::string torch = version_of(version_text(), "LibTorch");
  if (torch.empty() || torch.starts_with("not found"))
    return {"engine", Verdict::kProblem, "LibTorch was not found for " + engine->string(),
            fmt::format(
                "install it into the active Python environment (pip install 'torch=={}.*'), or set "
                "SFTRUN_TORCH_ROOT to the folder of one",
                built_torch_version())};
  return {"engine",
          Verdict::kOk,
          fmt::format("sftrun {}, LibTorch {}", version_of(version_text(), "sftrun"), torch),
          {}};
}

std::vector<Check> machine_checks() {
  std::vector<std::pair<std::string, fs::path>> disks = {{"runs", absolute_path(".")}};
  std::vector<Check> checks = {engine_check()};
  try {
    disks.emplace_back("downloads", hub::settings_from_environment().cache_dir);
  } catch (const ConfigError& error) {
    checks.push_back({"hub", Verdict::kProblem, error.message(), error.fix()});
  }
  launch::MachineState state = launch::read_machine_state(disks);
  state.has_cuda_kernels = has_cuda_kernels();
  state.nccl_version = version_of(version_text(), "NCCL");
  for (Check& check : launch::check_machine(state)) checks.push_back(std::move(check));
  return checks;
}

/// Variables that change how ranks communicate.
std::vector<std::string> communication_variables(const launch::Environment& env) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : env)
    if (name.starts_with("NCCL_") || name.starts_with("GLOO_") || name == "CUDA_VISIBLE_DEVICES")
      lines.push_back(fmt::format("{}={}", name, value));
  return lines;
}

/// Speeds below which something is wrong, in bytes per second on the wire.
double expected_bandwidth(const AllReduceAnswer& result, bool has_nvlink) {
  constexpr double kNvLink = 20e9, kPcie = 2e9, kGlooOnOneMachine = 50e6;
  if (result.backend == "nccl") return has_nvlink ? kNvLink : kPcie;
  return kGlooOnOneMachine;
}

Check all_reduce_check(const AllReduceAnswer& result, bool has_nvlink) {
  if (result.world_size < 2)
    return {"all-reduce", Verdict::kOk, "one process: nothing to communicate", {}};
  const std::string finding = fmt::format(
      "{} processes over {} on {}: {}/s for {}, {:.0f} µs for 4 bytes", result.world_size,
      result.backend, result.device, format_bytes(static_cast<uint64_t>(result.bandwidth)),
      format_bytes(static_cast<uint64_t>(result.bytes)), 1e6 * result.latency_seconds);
  if (result.bandwidth >= expected_bandwidth(result, has_nvlink))
    return {"all-reduce", Verdict::kOk, finding, {}};
  return {
      "all-reduce", Verdict::kWarning, finding + ", which is slow",
      result.backend == "nccl"
          ? "run it again with NCCL_DEBUG=INFO, which names the transport of each pair"
          : "end other programs; over several machines set GLOO_SOCKET_IFNAME to the fast network"};
}

bool has_nvlink(const launch::GpuReport& report) {
  return std::any_of(report.gpus.begin(), report.gpus.end(),
                     [](const launch::GpuInfo& gpu) { return gpu.num_nvlinks > 0; });
}

std::string result_text(const Check& check, size_t width) {
  std::string text = fmt::format("{:<8} {:<{}}  {}\n", launch::verdict_name(check.verdict),
                                 check.name, width, check.finding);
  if (!check.remedy.empty())
    text += fmt::format("{:>{}}fix: {}\n", "", 9 + width + 2, check.remedy);
  return text;
}

std::string as_text(const Diagnosis& diagnosis) {
  size_t width = 0;
  for (const Check& check : diagnosis.checks) width = std::max(width, check.name.size());
  std::string text;
  for (const Check& check : diagnosis.checks) text += result_text(check, width);
  text += "\nDistributed state:\n";
  for (const std::string& line : diagnosis.distributed.lines) text += "  " + line + "\n";
  const size_t problems = diagnosis.count(Verdict::kProblem),
               warnings = diagnosis.count(Verdict::kWarning);
  return text +
         fmt::format("\n{}, {}\n", counted(problems, "problem"), counted(warnings, "warning"));
}

Json as_json(const Diagnosis& diagnosis) {
  Json checks = Json::array();
  for (const Check& check : diagnosis.checks)
    checks.push_back({{"name", check.name},
                      {"verdict", launch::verdict_name(check.verdict)},
                      {"finding", check.finding},
                      {"remedy", check.remedy}});
  const DistributedState& state = diagnosis.distributed;
  return {{"problems", diagnosis.count(Verdict::kProblem)},
          {"warnings", diagnosis.count(Verdict::kWarning)},
          {"checks", checks},
          {"distributed",
           {{"started_by", state.started_by},
            {"world_size", state.world_size},
            {"rank", state.rank},
            {"nnodes", state.nnodes},
            {"node_rank", state.node_rank},
            {"rendezvous", state.rendezvous},
            {"lines", state.lines}}},
          {"all_reduce", json_of(diagnosis.all_reduce)}};
}

int print(const Diagnosis& diagnosis, bool json) {
  if (json)
    fmt::print("{}\n", as_json(diagnosis).dump(2, ' ', false, Json::error_handler_t::replace));
  else
    fmt::print("{}", as_text(diagnosis));
  require_standard_output();
  return static_cast<int>(diagnosis.count(Verdict::kProblem) == 0 ? ExitCode::kDone
                                                                  : ExitCode::kWorkerFailed);
}

/// Runs as a rank that this program's launcher or another one has started.
int run_rank(const DoctorOptions& options, const launch::ExternalWorker& external,
             const launch::Environment& env) {
  for (const auto& [name, value] : external.variables) ::setenv(name.c_str(), value.c_str(), 1);
  const launch::WorkerEnv worker = launch::worker_env(launch::current_environment());
  if (worker.supervised)
    return run_in_engine(
        AllReduceRequest{.device = options.device, .result = options.result.string()});
  const TemporaryFolder scratch("doctor");  // logs and the result of the workers
  const fs::path file = scratch.path() / "result.json";
  Diagnosis diagnosis;
  if (worker.rank == 0) diagnosis.checks = machine_checks();
  const int code =
      options.no_all_reduce
          ? 0
          : run_in_engine(AllReduceRequest{.device = options.device, .result = file.string()});
  if (worker.rank != 0 || code != 0) return code;
  if (!options.no_all_reduce) {
    diagnosis.all_reduce = read_json_file<AllReduceAnswer>(file);
    diagnosis.checks.push_back(
        all_reduce_check(*diagnosis.all_reduce, has_nvlink(launch::query_gpus())));
  }
  DistributedState& state = diagnosis.distributed;
  state = {.started_by = external.scheduler,
           .world_size = worker.world_size,
           .rank = worker.rank,
           .nnodes = worker.world_size / std::max(1, worker.local_world_size),
           .rendezvous = fmt::format("{}:{}", worker.master_addr, worker.master_port)};
  state.lines = {fmt::format("started by {}: rank {} of {}, {} on this machine", state.started_by,
                             worker.rank, worker.world_size, worker.local_world_size),
                 "rendezvous " + state.rendezvous};
  for (std::string& line : communication_variables(env)) state.lines.push_back(std::move(line));
  return print(diagnosis, options.json);
}

/// The all-reduce needs two ranks. Where a run would have one process, two on the CPU do it.
launch::LaunchPlan plan_with_two_ranks(const DoctorOptions& options, const launch::Machine& machine,
                                       const launch::LaunchPlan& of_run) {
  if (of_run.world_size() > 1 || options.nproc_per_node != "auto") return of_run;
  launch::LaunchRequest request = options.request();
  request.nproc_per_node = "2";
  request.device = "cpu";
  request.gpus = "";
  return launch::make_plan(request, machine);
}

/// Starts the ranks of this machine.   @return what rank 0 wrote; nullopt if rank 0 is elsewhere
std::optional<AllReduceAnswer> run_all_reduce(const launch::LaunchPlan& plan,
                                              const launch::Environment& env) {
  const TemporaryFolder scratch("doctor");  // logs and the result of the workers
  const fs::path file = scratch.path() / "result.json";
  const launch::WorkerCommand command{
      .executable = "/proc/self/exe",
      .arguments = {"sftrun", "doctor", "--device", plan.workers_device, "--result",
                    file.string()}};
  const int code = launch::supervise({.plan = plan,
                                      .environment = env,
                                      .command = command,
                                      .restart_command = command,
                                      .run_dir = scratch.path(),
                                      .stall_s = 20})
                       .exit_code;
  if (code != 0) throw Error(static_cast<ExitCode>(code), "stopped before the all-reduce was done");
  if (plan.node_rank != 0) return std::nullopt;
  return read_json_file<AllReduceAnswer>(file);
}

void add_all_reduce(Diagnosis& diagnosis, const launch::LaunchPlan& plan,
                    const launch::Machine& machine) {
  try {
    diagnosis.all_reduce = run_all_reduce(plan, machine.env);
    if (!diagnosis.all_reduce)
      diagnosis.checks.push_back(
          {"all-reduce", Verdict::kOk, "done; machine 0 prints the numbers", {}});
    else
      diagnosis.checks.push_back(all_reduce_check(*diagnosis.all_reduce, has_nvlink(machine.gpus)));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped || error.code() == ExitCode::kInterrupted) throw;
    const std::string where = error.where().empty() ? "" : " at " + error.where();
    diagnosis.checks.push_back({"all-reduce", Verdict::kProblem, error.message() + where,
                                error.fix().empty() ? "see the messages above" : error.fix()});
  }
}

int run_launcher(const DoctorOptions& options) {
  const launch::Machine machine = launch::this_machine(has_cuda_kernels());
  const launch::LaunchPlan of_run = launch::make_plan(options.request(), machine);
  Diagnosis diagnosis{.checks = machine_checks()};
  DistributedState& state = diagnosis.distributed;
  state = {.world_size = of_run.world_size(),
           .rank = of_run.rank_of(0),
           .nnodes = of_run.nnodes,
           .node_rank = of_run.node_rank,
           .rendezvous = of_run.master_port == 0
                             ? ""
                             : fmt::format("{}:{}", of_run.master_addr, of_run.master_port)};
  state.lines = split("a run would start " + launch::describe(of_run), '\n');
  if (const auto settings = config::load_machine_settings(); !settings.file.empty())
    state.lines.push_back("machine file: " + settings.file.string());
  for (std::string& line : communication_variables(machine.env))
    state.lines.push_back(std::move(line));
  const bool has_engine = diagnosis.checks.front().verdict == Verdict::kOk;
  if (has_engine && !options.no_all_reduce)
    add_all_reduce(diagnosis, plan_with_two_ranks(options, machine, of_run), machine);
  return print(diagnosis, options.json);
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const launch::Environment env = launch::current_environment();
  if (const auto external = launch::external_worker(env, options.asks_for_processes()))
    return run_rank(options, *external, env);
  return run_launcher(options);
}

}  // namespace sftrun::app
