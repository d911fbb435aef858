#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tracked_line.h"

namespace sftrun::track {

/// Reads metrics.jsonl from its beginning, while another process writes it. A file that became shorter
/// or was replaced, as a resumed run does, is read from its beginning again.
class MetricsTail {
 public:
  explicit MetricsTail(std::filesystem::path path) : path_(std::move(path)) {}

  /// The next complete lines, at most about 64 KiB of them; empty: there are none yet.
  std::vector<TrackedLine> read();

 private:
  std::filesystem::path path_;
  ino_t inode_ = 0;
  off_t offset_ = 0;
};

}  // namespace sftrun::track
