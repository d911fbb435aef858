#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/launch/gpu.h"
#include "sftrun/launch/worker_env.h"
#include "sftrun/observe/system.h"

/// What on this machine will stop a run, or make it slow, and how to fix it.
namespace sftrun::launch {

enum class Verdict { kOk, kWarning, kProblem };
std::string_view verdict_name(Verdict verdict);  ///< "ok", "warning", "problem"

struct Check {
  std::string name;  ///< "driver", "open files"
  Verdict verdict = Verdict::kOk;
  std::string finding;
  std::string remedy;  ///< one sentence; empty for kOk
};

struct DiskSpace {
  std::string use;  ///< "runs", "downloads"
  std::filesystem::path path;
  uint64_t free_bytes = 0;
};

/// Limits of this process; nullopt: unlimited.
struct ProcessLimits {
  std::optional<uint64_t> locked_memory_bytes, open_files, processes;
};

struct MachineState {
  GpuReport gpus;
  std::string amd;                ///< as Machine::amd
  bool has_cuda_kernels = false;  ///< this build can use GPUs
  std::string nccl_version;       ///< "": none was found beside LibTorch
  Environment env;
  std::string cpu_model;
  int logical_cpus = 1;
  size_t allowed_cpus = 1;
  double available_cpus = 1;  ///< mask and quota
  std::vector<std::string> cpu_features;
  observe::MemoryInfo memory;
  std::vector<DiskSpace> disks;
  std::optional<uint64_t> shm_free_bytes;  ///< of /dev/shm; nullopt: there is none
  ProcessLimits limits;
  bool has_infiniband = false;
  std::vector<std::string> interfaces;  ///< of the network, that are up: "lo", "eth0"
  int64_t year = 0;                     ///< as the system's clock has it
};

/// Reads this machine.   @param disks directories by their use; the nearest that exists is measured
MachineState read_machine_state(
    const std::vector<std::pair<std::string, std::filesystem::path>>& disks);

/// Pure; one entry or several for each of: drivers, GPUs, NCCL, peer access, clocks, CPU, memory,
/// /dev/shm, disks, limits, network, environment variables, date.
std::vector<Check> check_machine(const MachineState& state);

}  // namespace sftrun::launch
