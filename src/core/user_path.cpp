#include "sftrun/core/user_path.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace sftrun {
namespace {

/// @param user empty: the user of this process
std::string home_of(const std::string& user) {
  const char* variable = std::getenv("HOME");
  if (user.empty() && variable != nullptr && *variable != '\0') return variable;
  const passwd* entry = user.empty() ? ::getpwuid(::getuid()) : ::getpwnam(user.c_str());
  return entry == nullptr || entry->pw_dir == nullptr ? "" : entry->pw_dir;
}

}  // namespace

std::string expanded_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t end = std::min(path.find('/'), path.size());
  std::string home = home_of(path.substr(1, end - 1));
  if (home.empty()) return path;
  while (home.size() > 1 && home.ends_with('/')) home.pop_back();
  return home == "/" && end < path.size() ? path.substr(end) : home + path.substr(end);
}

bool is_none_word(std::string_view text) {
  constexpr std::array<std::string_view, 7> kWords = {"none", "None", "NONE", "null",
                                                      "Null", "NULL", "~"};
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

}  // namespace sftrun
