#pragma once

#include <filesystem>

namespace sftrun::launch {

/// One run directory belongs to one run at a time: flock(2) on `<run dir>/.lock` (`.lock-<n>` on
/// node n > 0), which the kernel gives back when the process ends, however it ends. The file stays
/// and names the last owner.
class RunLock {
 public:
  /// Creates the directory. @throws ConfigError naming the process that holds it.
  explicit RunLock(const std::filesystem::path& run_dir, int node_rank = 0);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace sftrun::launch
