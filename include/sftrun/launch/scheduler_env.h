#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sftrun/launch/worker_env.h"

/// Workers that something else started: torchrun, Slurm's srun, MPI's mpirun. Their variables
/// become torchrun's.
namespace sftrun::launch {

struct ExternalWorker {
  std::string scheduler;  ///< "torchrun", "Slurm", "MPI"
  Environment
      variables;  ///< torchrun's variables that were missing, to be set before the engine starts
};

/// The worker this process is, if something else started one process per rank; nullopt if this
/// process is to launch.
///
/// RANK with WORLD_SIZE always makes a worker. A Slurm step (not its batch script) or an MPI job
/// makes one when it has more than one task: a single task with many GPUs wants a launcher (`srun
/// --ntasks=1 --gpus=8`).
/// @param launcher_asked_for the user named a number of workers or GPUs: then Slurm and MPI only
/// place the launcher
/// @throws ConfigError where MASTER_ADDR cannot be derived, or where Accelerate was asked for several
/// processes and started one.
std::optional<ExternalWorker> external_worker(const Environment& env, bool launcher_asked_for);

/// The first host of a Slurm node list: "node[003-010,12],gpu5" gives "node003"; "" if there is
/// none.
std::string first_host(std::string_view node_list);

/// Entry `node` of Slurm's compressed counts: "2(x3),1" is 2, 2, 2, 1.
std::optional<int> tasks_of_node(std::string_view tasks_per_node, int node);

}  // namespace sftrun::launch
