#include "sftrun/launch/scheduler_env.h"

#include <unistd.h>

#include <array>

#include "parse_int.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace {

/// Below the ports that Linux uses for outgoing connections (32768 and up).
constexpr int64_t kFirstPort = 15000, kNumPorts = 15000;

std::optional<std::string> first_of(const Environment& env,
                                    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto found = env.find(name); found != env.end() && !found->second.empty()) {
      return found->second;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> int_of(const Environment& env, std::initializer_list<const char*> names) {
  const auto text = first_of(env, names);
  return text ? parse_int(*text) : std::nullopt;
}

std::string port_from(int64_t number) {
  return std::to_string(kFirstPort + (number % kNumPorts + kNumPorts) % kNumPorts);
}

struct Place {
  int64_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1, node_rank = 0;
};

Environment torchrun_names(const Place& place, std::string master_addr, std::string master_port) {
  return {{"RANK", std::to_string(place.rank)},
          {"WORLD_SIZE", std::to_string(place.world_size)},
          {"LOCAL_RANK", std::to_string(place.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
          {"GROUP_RANK", std::to_string(place.node_rank)},
          {"NODE_RANK", std::to_string(place.node_rank)},
          {"MASTER_ADDR", std::move(master_addr)},
          {"MASTER_PORT", std::move(master_port)}};
}

ExternalWorker without_known(ExternalWorker worker, const Environment& env) {
  std::erase_if(worker.variables, [&](const auto& entry) { return env.contains(entry.first); });
  return worker;
}

ExternalWorker from_torchrun(const Environment& env) {
  ExternalWorker worker{.scheduler = "torchrun", .variables = {}};
  const auto rank = int_of(env, {"RANK"}).value_or(0);
  const auto local_world_size = std::max<int64_t>(1, int_of(env, {"LOCAL_WORLD_SIZE"}).value_or(1));
  worker.variables["LOCAL_WORLD_SIZE"] = std::to_string(local_world_size);
  worker.variables["LOCAL_RANK"] = std::to_string(rank % local_world_size);
  worker.variables["GROUP_RANK"] = std::to_string(rank / local_world_size);
  return without_known(std::move(worker), env);
}

std::optional<ExternalWorker> from_slurm(const Environment& env) {
  // A batch script also has SLURM_PROCID=0, but no step.
  if (!env.contains("SLURM_STEP_ID") && !env.contains("SLURM_STEPID")) return std::nullopt;
  const auto rank = int_of(env, {"SLURM_PROCID"});
  const auto world_size = int_of(env, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  if (!rank || !world_size || *world_size < 2) return std::nullopt;
  Place place{.rank = *rank, .world_size = *world_size};
  place.node_rank = int_of(env, {"SLURM_NODEID"}).value_or(0);
  place.local_rank = int_of(env, {"SLURM_LOCALID"}).value_or(0);
  const auto counts =
      first_of(env, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}).value_or("");
  place.local_world_size =
      tasks_of_node(counts, static_cast<int>(place.node_rank)).value_or(place.local_rank + 1);
  const auto nodes =
      first_of(env, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}).value_or("");
  const std::string host = first_host(nodes);
  if (host.empty() && !env.contains("MASTER_ADDR")) {
    throw ConfigError("Slurm's node list is missing, so the host of rank 0 is unknown",
                      "environment variable SLURM_JOB_NODELIST",
                      "set MASTER_ADDR to the host of rank 0");
  }
  const int64_t job = int_of(env, {"SLURM_JOB_ID", "SLURM_JOBID"}).value_or(0);
  const int64_t step = int_of(env, {"SLURM_STEP_ID", "SLURM_STEPID"}).value_or(0);
  return without_known(
      {.scheduler = "Slurm", .variables = torchrun_names(place, host, port_from(job * 31 + step))},
      env);
}

struct MpiNames {
  std::initializer_list<const char*> rank, size, local_rank, local_size;
};

/// Ranks of one machine share a parent (mpirun or its proxy); the job's name is the same on all
/// machines.
std::string port_of_mpi_job(const Environment& env) {
  const auto name = first_of(env, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                                   "HYDRA_JOBID", "LSB_JOBID", "PBS_JOBID"});
  if (!name) return port_from(::getppid());
  uint32_t hash = 2166136261u;  // FNV-1a: every rank must find the same port
  for (const char c : *name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return port_from(hash);
}

std::optional<ExternalWorker> from_mpi(const Environment& env) {
  const std::array<MpiNames, 3> kinds = {
      MpiNames{{"OMPI_COMM_WORLD_RANK"},
               {"OMPI_COMM_WORLD_SIZE"},
               {"OMPI_COMM_WORLD_LOCAL_RANK"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      MpiNames{{"MV2_COMM_WORLD_RANK"},
               {"MV2_COMM_WORLD_SIZE"},
               {"MV2_COMM_WORLD_LOCAL_RANK"},
               {"MV2_COMM_WORLD_LOCAL_SIZE"}},
      MpiNames{{"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}}};
  for (const MpiNames& names : kinds) {
    const auto rank = int_of(env, names.rank), world_size = int_of(env, names.size);
    if (!rank || !world_size || *world_size < 2) continue;
    Place place{.rank = *rank, .world_size = *world_size};
    place.local_world_size = std::max<int64_t>(1, int_of(env, names.local_size).value_or(1));
    place.local_rank = int_of(env, names.local_rank).value_or(*rank % place.local_world_size);
    place.node_rank = *rank / place.local_world_size;
    const bool one_machine = place.local_world_size == place.world_size;
    if (!one_machine && !env.contains("MASTER_ADDR")) {
      throw ConfigError("the host of rank 0 is unknown, because MPI does not report it",
                        "environment variable MASTER_ADDR",
                        "set it: mpirun -x MASTER_ADDR=<host of rank 0> … "
                        "(-genv MASTER_ADDR <host> for MPICH and Intel MPI)");
    }
    return without_known(
        {.scheduler = "MPI", .variables = torchrun_names(place, "127.0.0.1", port_of_mpi_job(env))},
        env);
  }
  return std::nullopt;
}

/// Accelerate starts processes for GPUs (like torchrun) or through mpirun. If several processes are
/// requested on a CPU without mpirun, it starts only one, and sets MASTER_ADDR and MASTER_PORT but
/// no rank.
void refuse_one_of_several(const Environment& env) {
  const std::string on_cpu = ascii_lower(first_of(env, {"ACCELERATE_USE_CPU"}).value_or(""));
  if (on_cpu != "true" && on_cpu != "1") return;
  if (!env.contains("MASTER_ADDR") || !env.contains("MASTER_PORT")) return;
  throw ConfigError(
      "several processes on a CPU were requested, but Accelerate has started only this one",
      "environment variables ACCELERATE_USE_CPU and MASTER_ADDR",
      "start them with sftrun: sftrun train … --device cpu --nproc-per-node N; or give Accelerate "
      "--mpirun_hostfile FILE, or use torchrun");
}

}  // namespace

std::optional<ExternalWorker> external_worker(const Environment& env, bool launcher_asked_for) {
  if (env.contains("RANK") && env.contains("WORLD_SIZE")) return from_torchrun(env);
  if (launcher_asked_for) return std::nullopt;
  if (auto worker = from_slurm(env)) return worker;
  if (auto worker = from_mpi(env)) return worker;
  refuse_one_of_several(env);
  return std::nullopt;
}

std::string first_host(std::string_view node_list) {
  const size_t bracket = node_list.find_first_of("[,");
  if (bracket == std::string_view::npos || node_list[bracket] == ',') {
    return std::string(node_list.substr(0, bracket));
  }
  const size_t close = node_list.find(']', bracket);
  if (close == std::string_view::npos) return {};
  // "[003-010,12]": the first number keeps its zeros. More brackets may follow:
  // "rack[1-2]node[3-4]".
  const std::string_view numbers = node_list.substr(bracket + 1, close - bracket - 1);
  const std::string_view rest = node_list.substr(close + 1);
  std::string host(node_list.substr(0, bracket));
  host += numbers.substr(0, numbers.find_first_of("-,"));
  if (!rest.empty() && rest.front() != ',') host += first_host(rest);
  return host;
}

std::optional<int> tasks_of_node(std::string_view tasks_per_node, int node) {
  for (const std::string& part : split(tasks_per_node, ',')) {
    const size_t times = part.find("(x");
    const auto tasks = parse_int(std::string_view(part).substr(0, times));
    int64_t repeat = 1;
    if (times != std::string::npos) {
      const size_t digits = part.find_first_not_of("0123456789", times + 2);
      repeat = parse_int(std::string_view(part).substr(times + 2, digits - times - 2)).value_or(1);
    }
    if (!tasks) return std::nullopt;
    if (node < repeat) return static_cast<int>(*tasks);
    node -= static_cast<int>(repeat);
  }
  return std::nullopt;
}

}  // namespace sftrun::launch
