#pragma once

#include <filesystem>

/// Whether paths lead to something. Unlike std::filesystem::exists they never throw: a circle of
/// links, or a folder that may not be read, is an answer.
namespace sftrun {

/// Whether there is an entry of this name, also a link that leads nowhere.
inline bool has_entry(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

/// Whether it leads to a file or a folder.
inline bool leads_to_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace sftrun
