#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/open_file.h"

/// Files: read completely, mapped into memory, or written such that no incomplete file is ever
/// visible.
namespace sftrun {

/// The whole file as bytes. @throws DataError naming the path and the reason; also for special
/// files
std::string read_text_file(const std::filesystem::path& path);
/// Reads standard input to its end; it may be of any kind.
std::string read_standard_input();

/// Read-only private mapping of a file. Movable, not copyable. An empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  /// @throws DataError if the file cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  /// Releases the pages of `part` from the process's memory; they are read again when accessed.
  /// Does nothing for bytes outside this mapping.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A file that is written under a temporary name in the same directory. `commit` syncs the data,
/// renames the file into place and syncs the directory. Without `commit` the destructor removes it.
/// A special file, where one is allowed, is written directly; a named pipe must get a reader within
/// ten seconds.
class AtomicFile {
 public:
  /// @throws DeviceError if the target is a directory or a special file, or cannot be written
  explicit AtomicFile(std::filesystem::path target, SpecialFile special = SpecialFile::kRefused);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// @throws DeviceError (disk full, read-only, …) naming the target.
  void write(const void* data, size_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void sync();  ///< what was written is stored, under the temporary name   @throws DeviceError
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
};

/// Removes files and folders in `directory` whose names begin with `prefix`. Failures are ignored;
/// does not throw if the directory does not exist.
void remove_entries(const std::filesystem::path& directory, std::string_view prefix);
/// Removes temporary files that AtomicFile objects of killed processes left in `directory`. No
/// process may be writing there.
void remove_temporaries(const std::filesystem::path& directory);

/// Writes a file with `AtomicFile`.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           SpecialFile special = SpecialFile::kRefused);
/// Replaces the file's `content` by `kept`. If `kept` is the beginning of `content` the file is
/// truncated, which works on a full disk; else it is rewritten. @throws DeviceError
void shrink_file(const std::filesystem::path& path, std::string_view content,
                 std::string_view kept);

/// Whether a path contains `*`, `?` or `[` and no file has exactly that name.
bool is_glob(const std::filesystem::path& path);
/// Whether a text contains the special characters of shell patterns.
bool holds_wildcards(std::string_view text);

/// The files and folders that match a shell pattern, sorted.
std::vector<std::filesystem::path> expand_glob(const std::filesystem::path& pattern);

/// Whether a path exists or, as a pattern, matches something.
bool exists_or_matches(const std::filesystem::path& path);

/// Syncs a directory, so that renames in it survive a power failure.
void sync_directory(const std::filesystem::path& path);

/// Like create_directories. @throws ConfigError naming the path and the reason
void make_directories(const std::filesystem::path& path);

/// An append-only file of lines (metrics, logs). Each `append` is one write(2) of a whole line, so
/// that lines are never interleaved. Not thread-safe.
class LineFile {
 public:
  LineFile() = default;
  /// Opened O_APPEND, created if missing.   @throws DeviceError, also for special files
  explicit LineFile(const std::filesystem::path& path);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;
  void append(std::string_view line);  ///< adds the newline
  void sync();                         ///< fsync
  bool is_open() const { return fd_ >= 0; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace sftrun
