#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace sftrun::fuzz {

/// A file for readers that take paths; it never touches a disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// The file with these bytes alone.
  std::filesystem::path holding(std::string_view bytes) const {
    const bool written = ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) ==
                                                         static_cast<ssize_t>(bytes.size());
    if (!written) std::abort();
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_ = -1;
};

}  // namespace sftrun::fuzz
