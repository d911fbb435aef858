#pragma once

#include <filesystem>
#include <string>

namespace sftrun::app {

/// A new folder among the system's temporary files, removed with its content at the end.
class TemporaryFolder {
 public:
  /// @param purpose a word of its name   @throws DeviceError if it cannot be made
  explicit TemporaryFolder(const std::string& purpose);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace sftrun::app
