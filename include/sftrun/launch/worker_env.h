#pragma once

#include <map>
#include <optional>
#include <string>

/// The place of this process in the job, from torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT. Variables of Slurm and MPI are
/// translated to them.
namespace sftrun::launch {

using Environment = std::map<std::string, std::string>;
Environment current_environment();

struct WorkerEnv {
  int rank = 0, world_size = 1;
  int local_rank = 0,
      local_world_size = 1;  ///< device index: local_rank % number of visible devices
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0 only if world_size is 1 and none was given: no rendezvous
  /// Started by sftrun's launcher, which writes stdout and stderr to logs/rank-N.log and selects
  /// the lines to show. The worker therefore logs to stderr from level debug, without a file.
  bool supervised = false;
};

/// Reads torchrun's variables of this process (rank 0 of 1 when there are none).
/// @throws ConfigError naming a variable that is missing or out of range.
WorkerEnv worker_env();
WorkerEnv worker_env(const Environment& env);
/// Whether this process may say what concerns all of a run: the launcher, a process alone, or rank 0
/// of another launcher. Values of the variables are not checked.
bool speaks_for_run(const Environment& env);

}  // namespace sftrun::launch
