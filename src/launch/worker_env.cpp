#include "sftrun/launch/worker_env.h"

#include <unistd.h>

#include <limits>

#include "parse_int.h"
#include "sftrun/core/error.h"

extern char** environ;

namespace sftrun::launch {
namespace {

constexpr const char* kSupervised = "SFTRUN_STATUS_FD";  // set by this program's launcher

std::optional<int> number(const Environment& env, const std::string& name, int least, int most) {
  const auto found = env.find(name);
  if (found == env.end()) return std::nullopt;
  const auto value = parse_int(found->second);
  if (!value || *value < least || *value > most) {
    throw ConfigError(
        fmt::format("{}={} is not a number from {} to {}", name, found->second, least, most),
        "environment variable " + name,
        "the launcher that starts the workers must set it; or unset it");
  }
  return static_cast<int>(*value);
}

ConfigError missing(const std::string& name) {
  return ConfigError(fmt::format("{} is not set, but RANK and WORLD_SIZE are", name), "environment",
                     fmt::format("set {} for every worker, or unset RANK and WORLD_SIZE to let "
                                 "sftrun start the workers",
                                 name));
}

}  // namespace

Environment current_environment() {
  Environment env;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    env.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return env;
}

bool speaks_for_run(const Environment& env) {
  const auto rank = env.find("RANK");
  return !env.contains(kSupervised) && (rank == env.end() || rank->second == "0");
}

WorkerEnv worker_env() {
  return worker_env(current_environment());
}

WorkerEnv worker_env(const Environment& env) {
  constexpr int kMax = std::numeric_limits<int>::max();
  WorkerEnv worker;
  worker.supervised = env.contains(kSupervised);
  if (!env.contains("RANK") && !env.contains("WORLD_SIZE")) return worker;
  const auto rank = number(env, "RANK", 0, kMax);
  const auto world_size = number(env, "WORLD_SIZE", 1, kMax);
  if (!rank || !world_size) throw missing(rank ? "WORLD_SIZE" : "RANK");
  worker.rank = *rank;
  worker.world_size = *world_size;
  if (worker.rank >= worker.world_size) {
    throw ConfigError(fmt::format("RANK={} is not below WORLD_SIZE={}", *rank, *world_size),
                      "environment", "ranks are numbered from 0");
  }
  worker.local_world_size = number(env, "LOCAL_WORLD_SIZE", 1, worker.world_size).value_or(1);
  // Launchers that start one process per pod (Kubernetes' PyTorchJob) do not set the local rank.
  worker.local_rank =
      number(env, "LOCAL_RANK", 0, kMax).value_or(worker.rank % worker.local_world_size);
  worker.node_rank =
      number(env, "GROUP_RANK", 0, kMax).value_or(worker.rank / worker.local_world_size);
  if (const auto address = env.find("MASTER_ADDR"); address != env.end()) {
    worker.master_addr = address->second;
  } else if (worker.world_size > 1) {
    throw missing("MASTER_ADDR");
  }
  worker.master_port = number(env, "MASTER_PORT", 1, 65535).value_or(0);
  if (worker.world_size > 1 && worker.master_port == 0) throw missing("MASTER_PORT");
  return worker;
}

}  // namespace sftrun::launch
