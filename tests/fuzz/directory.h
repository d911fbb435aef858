#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace sftrun::fuzz {

/// A directory of this process, in memory where TMPDIR is.
class Directory {
 public:
  explicit Directory(const char* name)
      : path_(std::filesystem::temp_directory_path() /
              (std::string("sftrun-fuzz-") + name + "-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  void write(const char* name, std::string_view bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file) std::abort();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// What is before the first NUL, and what is behind it.
inline std::pair<std::string_view, std::string_view> both_of(std::string_view text) {
  const size_t at = text.find('\0');
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace sftrun::fuzz
