#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>

/// Hashes of whole files, remembered for files that have not changed since.
namespace sftrun {

/// The user's folder for what sftrun may lose: $XDG_CACHE_HOME/sftrun, else ~/.cache/sftrun; empty
/// where neither is set.
std::filesystem::path user_cache();

/// Thread-safe, and safe among processes that remember in one folder.
class FileHashes {
 public:
  /// @param memory a folder, made when it is needed; empty: nothing is remembered
  explicit FileHashes(std::filesystem::path memory) : memory_(std::move(memory)) {}

  /// Hash of the bytes from `begin` to the end, as 32 hexadecimal digits: XXH3 with 128 bits over
  /// those of its pieces, which several threads read. A file that has the path, size, device,
  /// inode, and times of change (mtime, ctime) that it had when it was read is not read again.
  /// @param stop ends the work early
  /// @throws DataError when the file cannot be read; Stopped
  std::string of(const std::filesystem::path& file, uint64_t begin = 0,
                 const std::stop_token& stop = {}) const;

  struct Stopped {};

 private:
  std::filesystem::path memory_;
};

}  // namespace sftrun
