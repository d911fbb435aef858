#pragma once

#include <filesystem>
#include <string>

namespace sftrun::app {

/// A new folder among the system's temporary files, which other users cannot read, removed with its
/// content at the end.
class TemporaryFolder {
 public:
  /// @param purpose a word of its name   @throws DeviceError if it cannot be made
  explicit TemporaryFolder(const std::string& purpose);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// Leaves it where it is at the end.
  void keep() { is_kept_ = true; }

 private:
  std::filesystem::path path_;
  bool is_kept_ = false;
};

}  // namespace sftrun::app
