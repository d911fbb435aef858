#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

/// Hashes of whole files, cached for files that have not changed.
namespace sftrun {

/// The user's cache folder for sftrun: $XDG_CACHE_HOME/sftrun, else ~/.cache/sftrun; empty if
/// neither variable is set. Its content may be deleted at any time.
std::filesystem::path user_cache();

/// Thread-safe; several processes may use the same cache folder.
class FileHashes {
 public:
  /// @param memory cache folder, created when needed; empty: hashes are not cached
  explicit FileHashes(std::filesystem::path memory) : memory_(std::move(memory)) {}

  /// Hash of the bytes from `begin` to the end, as 32 hexadecimal digits: the 128-bit XXH3 of the
  /// XXH3 hashes of fixed-size pieces, which several threads read. A file is not read again if its
  /// path, size, device, inode and times (mtime, ctime) are unchanged.
  /// @param stop ends the computation early
  /// @throws DataError when the file cannot be read; Stopped
  std::string of(const std::filesystem::path& file, uint64_t begin = 0,
                 const std::stop_token& stop = {}) const;

  struct Stopped {};

 private:
  std::filesystem::path memory_;
};

}  // namespace sftrun
