#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

struct stat;

namespace sftrun {

/// A regular file that is read in parts. They are copied: a file that another program shortens meanwhile gives an error, while reading a
/// mapping of it would end the process (SIGBUS). Reading is thread-safe.
class InputFile {
 public:
  /// @throws DataError naming the path if it cannot be opened, or is not a regular file
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  ///< in bytes, when the file was opened
  struct stat status() const;              ///< of now

  /// Fills `into` with the bytes from `offset` on.
  /// @throws DataError naming the path if the file ends before, or cannot be read
  void read(uint64_t offset, std::span<std::byte> into) const;
  /// The same as a text. Nothing is allocated for bytes behind `size()`.
  std::string read(uint64_t offset, uint64_t num_bytes) const;

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace sftrun
