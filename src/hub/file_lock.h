#pragma once

#include <filesystem>
#include <functional>

#include "retry.h"

namespace sftrun::hub {

/// A lock that is compatible with Python's filelock on Linux, which huggingface_hub uses for each
/// file: flock(2) on a lock file that is kept. Waits for the lock without a time limit.
class FileLock {
 public:
  /// @throws Error (130) if stopped while waiting; DeviceError if the file cannot be opened
  FileLock(const std::filesystem::path& path, const ShouldStop& should_stop);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// false on a file system without locks: other processes may write the same file.
  bool is_exclusive() const { return exclusive_; }

 private:
  bool try_lock(const std::filesystem::path& path);

  int fd_ = -1;
  bool exclusive_ = false;
};

}  // namespace sftrun::hub
