#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sftrun/launch/worker_env.h"

/// Workers that another launcher started: torchrun, Slurm's srun, MPI's mpirun. Their variables are
/// translated to torchrun's.
namespace sftrun::launch {

struct ExternalWorker {
  std::string scheduler;  ///< "torchrun", "Slurm", "MPI"
  Environment variables;  ///< missing variables of torchrun, to be set before the engine starts
};

/// This process as a worker, if another launcher started one process per rank; nullopt if this
/// process is the launcher.
///
/// RANK with WORLD_SIZE always makes a worker. A Slurm step (not its batch script) or an MPI job
/// makes one if it has more than one task: a single task with many GPUs needs a launcher (`srun
/// --ntasks=1 --gpus=8`).
/// @param launcher_asked_for the user set a number of workers or GPUs: then Slurm and MPI only
/// start the launcher
/// @throws ConfigError if MASTER_ADDR cannot be derived, or if Accelerate should have started
/// several processes but started one.
std::optional<ExternalWorker> external_worker(const Environment& env, bool launcher_asked_for);

/// The first host of a Slurm node list: "node[003-010,12],gpu5" gives "node003"; "" if there is
/// none.
std::string first_host(std::string_view node_list);

/// Entry `node` of Slurm's compressed counts: "2(x3),1" is 2, 2, 2, 1.
std::optional<int> tasks_of_node(std::string_view tasks_per_node, int node);

}  // namespace sftrun::launch
