#pragma once

#include <filesystem>
#include <string>

/// What paths lead to. Unlike the functions of std::filesystem these never throw: a circle of links, a name that is too long or has a NUL
/// byte, which would cut it short, is an answer.
namespace sftrun {

/// Whether it has no NUL: the system takes that for the end of a name, and would open another file.
inline bool can_be_path(const std::filesystem::path& path) {
  return path.native().find('\0') == std::string::npos;
}

/// Whether there is an entry of this name, also a link that leads nowhere.
inline bool has_entry(const std::filesystem::path& path) {
  std::error_code ignored;
  return can_be_path(path) &&
         std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

/// Whether it leads to a file or a folder. Also if that cannot be known, because a folder on the way may not be searched: opening the file
/// says why.
inline bool leads_to_file(const std::filesystem::path& path) {
  std::error_code code;
  return can_be_path(path) &&
         (std::filesystem::exists(path, code) || code == std::errc::permission_denied);
}

inline bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return can_be_path(path) && std::filesystem::is_directory(path, ignored);
}

inline bool is_plain_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return can_be_path(path) && std::filesystem::is_regular_file(path, ignored);
}

/// The path itself, where the current directory was removed, and for an empty path.
inline std::filesystem::path absolute_path(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::path whole = std::filesystem::absolute(path, code);
  return code ? path : whole;
}

}  // namespace sftrun
