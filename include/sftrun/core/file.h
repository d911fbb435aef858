#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Files on disk: read whole, mapped, or written so that nobody ever sees half of one.
namespace sftrun {

/// @throws DataError for a named pipe, a socket or a device: to read one may wait, or have no end.
/// What is not there, or cannot be asked for, is left to those who open it.
void require_no_special_file(const std::filesystem::path& path);

/// The whole file as bytes. @throws DataError naming the path and the reason; for special files,
/// too.
std::string read_text_file(const std::filesystem::path& path);
/// What comes through standard input, whatever that is.
std::string read_standard_input();

/// Read-only private mapping of a file; moves, does not copy. An empty file maps to an empty span.
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
  /// Takes the pages of `part` out of the process's memory; touched again, they are read again.
  /// Nothing happens for bytes that are not this mapping's.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A file written under a temporary name in the same directory and renamed into place by `commit`,
/// after fsync of the data and before fsync of the directory. Destroyed uncommitted, it leaves
/// nothing.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// @throws DeviceError (disk full, read-only, …) naming the target.
  void write(const void* data, size_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
};

/// Removes the files and folders in `directory` whose names begin with `prefix`, as far as that is
/// possible. Never throws for a directory that is not there.
void remove_entries(const std::filesystem::path& directory, std::string_view prefix);
/// Removes what AtomicFile objects of processes that were killed have left in `directory`. Nobody
/// may be writing there.
void remove_temporaries(const std::filesystem::path& directory);

/// `AtomicFile` in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);
/// Leaves `kept` of a file that holds `content`: cut where that is its beginning, which needs no
/// space on a full disk, else written anew. @throws DeviceError
void shrink_file(const std::filesystem::path& path, std::string_view content,
                 std::string_view kept);

/// Whether a path holds `*`, `?` or `[`, and no file has that very name.
bool is_glob(const std::filesystem::path& path);
/// Whether a text has a shell pattern's characters.
bool holds_wildcards(std::string_view text);

/// The files and folders that match a shell pattern, sorted.
std::vector<std::filesystem::path> expand_glob(const std::filesystem::path& pattern);

/// Whether a path, or anything that matches it, exists.
bool exists_or_matches(const std::filesystem::path& path);

/// fsync of a directory, so that renames in it survive a power cut.
void sync_directory(const std::filesystem::path& path);

/// create_directories with our errors. @throws ConfigError naming the path and the reason.
void make_directories(const std::filesystem::path& path);

/// An append-only line file (metrics, logs): each `append` is one write(2) of one whole line, so a
/// crash never leaves an interleaved line. Not thread-safe.
class LineFile {
 public:
  LineFile() = default;
  explicit LineFile(const std::filesystem::path& path);  ///< opened O_APPEND, created if missing
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
