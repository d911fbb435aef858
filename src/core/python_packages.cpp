#include "sftrun/core/python_packages.h"

#include <algorithm>
#include <charconv>

#include "sftrun/core/entries.h"
#include "sftrun/core/presence.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPython = "python3";

/// 11 of "python3.11"; 0 of "python3"; -1 of what is not a folder of Python 3.
int minor_version(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPython)) return -1;
  if (name == kPython) return 0;
  const std::string_view rest = std::string_view(name).substr(kPython.size());
  int minor = -1;
  const auto parsed = std::from_chars(rest.data() + 1, rest.data() + rest.size(), minor);
  const bool is_whole =
      rest[0] == '.' && parsed.ec == std::errc() && parsed.ptr == rest.data() + rest.size();
  return is_whole ? minor : -1;
}

std::vector<fs::path> pythons_of(const fs::path& prefix) {
  std::vector<fs::path> pythons;
  for (const fs::path& entry : readable_entries_of(prefix / "lib"))
    if (minor_version(entry) >= 0) pythons.push_back(entry);
  std::sort(pythons.begin(), pythons.end(), [](const fs::path& a, const fs::path& b) {
    return minor_version(a) > minor_version(b);
  });
  return pythons;
}

std::vector<fs::path> environments(const EnvironmentReader& variable) {
  std::vector<fs::path> prefixes;
  const auto add = [&](const char* name, const fs::path& below) {
    if (const char* value = variable(name); value != nullptr && *value != '\0')
      prefixes.push_back(value / below);
  };
  add("VIRTUAL_ENV", "");
  add("CONDA_PREFIX", "");
  add("HOME", ".local");
  prefixes.emplace_back("/usr/local");
  prefixes.emplace_back("/usr");
  return prefixes;
}

}  // namespace

std::vector<fs::path> python_packages(const std::string& name, const EnvironmentReader& variable) {
  std::vector<fs::path> found;
  for (const fs::path& prefix : environments(variable)) {
    for (const fs::path& python : pythons_of(prefix)) {
      for (const char* packages : {"site-packages", "dist-packages"})  // the second is Debian's
        if (fs::path folder = python / packages / name; is_folder(folder))
          found.push_back(std::move(folder));
    }
  }
  return found;
}

}  // namespace sftrun
