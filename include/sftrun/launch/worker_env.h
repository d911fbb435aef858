#pragma once

#include <map>
#include <optional>
#include <string>

/// Where this process stands in the job, in torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT. Slurm's and MPI's are translated into
/// them.
namespace sftrun::launch {

using Environment = std::map<std::string, std::string>;
Environment current_environment();

struct WorkerEnv {
  int rank = 0, world_size = 1;
  int local_rank = 0,
      local_world_size = 1;  ///< device index: local_rank % number of visible devices
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0 only when world_size is 1 and nothing was given: nobody to meet
  /// Started by our launcher, which keeps logs/rank-N.log of everything written to stdout and
  /// stderr and chooses what to show: log to stderr from debug up, without a file.
  bool supervised = false;
};

/// Reads torchrun's variables of this process (rank 0 of 1 when there are none).
/// @throws ConfigError naming a variable that is missing or not a number in range.
WorkerEnv worker_env();
WorkerEnv worker_env(const Environment& env);

}  // namespace sftrun::launch
