#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Training runs on this machine, found through the locks of their run directories.
namespace sftrun::launch {

struct RunningProcess {
  int pid = 0;
  std::optional<int> rank;      ///< null: the launcher
  uint64_t resident_bytes = 0;  ///< memory of the host
};

struct RunningRun {
  std::string run_dir;
  /// The process that holds the lock first: the launcher, or a rank that another launcher started.
  std::vector<RunningProcess> processes;
};

/// Runs whose processes this user may see; never throws.   @param proc where /proc is mounted
std::vector<RunningRun> running_runs(const std::filesystem::path& proc = "/proc");

}  // namespace sftrun::launch
