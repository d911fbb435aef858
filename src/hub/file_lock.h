#pragma once

#include <filesystem>
#include <functional>

#include "retry.h"

namespace sftrun::hub {

/// The lock of Python's filelock on Linux, which huggingface_hub takes for each file: flock(2) on a
/// file of the lock's name that stays behind. Waits for it, however long another download takes.
class FileLock {
 public:
  /// @throws Error (130) if asked to stop while waiting; DeviceError if the file cannot be opened
  FileLock(const std::filesystem::path& path, const ShouldStop& should_stop);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// false on a file system that has no locks: others may be writing the same.
  bool is_exclusive() const { return exclusive_; }

 private:
  bool try_lock(const std::filesystem::path& path);

  int fd_ = -1;
  bool exclusive_ = false;
};

}  // namespace sftrun::hub
