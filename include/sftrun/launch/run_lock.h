#pragma once

#include <filesystem>

namespace sftrun::launch {

/// Only one run may use a run directory at a time: flock(2) on `<run dir>/.lock` (`.lock-<n>` on
/// node n > 0), which the kernel releases when the process ends. The file remains and names the
/// last owner.
class RunLock {
 public:
  /// Creates the directory.
  /// @param setting what names the directory, for the error
  /// @throws ConfigError naming the process that holds it.
  explicit RunLock(const std::filesystem::path& run_dir, int node_rank = 0,
                   const char* setting = "output.dir");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace sftrun::launch
