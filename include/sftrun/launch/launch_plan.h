#pragma once

#include <string>
#include <vector>

#include "sftrun/launch/cpu_topology.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/worker_env.h"

/// The workers of this machine: their devices, processors and environment.
namespace sftrun::launch {

/// The user's request, with the defaults of `sftrun train`.
struct LaunchRequest {
  std::string nproc_per_node = "auto";
  std::string
      gpus;  ///< "": all visible; "2": the first two; "0,2,3" (or "1,"): these of the visible GPUs
  std::string device = "auto";  ///< auto, cuda, cpu
  int nnodes = 1, node_rank = 0;
  std::string master_addr;      ///< "": the loopback address; required on several nodes
  int master_port = 0;          ///< 0: a free port (on several nodes 29500, as torchrun)
  bool is_one_process = false;  ///< by default one worker sees all GPUs
  /// More workers than GPUs may share them (tests, Gloo; NCCL refuses two ranks on one GPU).
  bool may_share_gpus = false;
};

/// The resources of the machine.
struct Machine {
  GpuReport gpus;
  Environment env;
  std::vector<Cpu> cpus;      ///< in the affinity mask
  double available_cpus = 1;  ///< observe::available_cpus: mask and quota
  bool can_use_gpus = true;   ///< this build has CUDA kernels
  std::string amd;            ///< why its AMD GPUs are not used; "": none
};
/// Reads them from this machine.
Machine this_machine(bool can_use_gpus);

struct LaunchPlan {
  int nnodes = 1, node_rank = 0, local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0: a free port is chosen at each start
  std::string run_id;
  std::string device = "cpu";  ///< cuda or cpu
  /// Passed to workers: cuda, cpu, or auto if GPUs were found but not requested; then the CPU is
  /// used if CUDA cannot be loaded.
  std::string workers_device = "cpu";
  std::vector<std::string> gpus;       ///< ids and names to print; empty for cpu
  std::string gpu_name;                ///< of the first one, or the id of a MIG slice
  std::string cuda_visible_devices;    ///< for the workers when `gpus` is not empty
  std::vector<std::vector<int>> cpus;  ///< CPUs of each worker; empty: not bound
  int threads_per_worker = 1;
  std::vector<std::string> notes;  ///< notes for the user: a quota, an old driver, …

  int world_size() const { return nnodes * local_world_size; }
  int rank_of(int local_rank) const { return node_rank * local_world_size + local_rank; }
};

/// Pure. @throws ConfigError for a request that this machine cannot fulfil.
LaunchPlan make_plan(const LaunchRequest& request, const Machine& machine);

/// torchrun's variables for one worker and the thread count, over `base` (the launcher's
/// environment). OMP_NUM_THREADS is kept if the user set it. @param master_port of this start, not
/// 0
Environment worker_environment(const LaunchPlan& plan, const Environment& base, int local_rank,
                               int master_port);

/// A description for --dry-run and the start of a run.
std::string describe(const LaunchPlan& plan);

/// A free TCP port. @throws CommError if there is none.
int pick_free_port();
/// Whether this machine can listen on `port` now.
bool is_port_free(int port);

}  // namespace sftrun::launch
