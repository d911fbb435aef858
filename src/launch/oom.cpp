#include "oom.h"

#include <fstream>
#include <optional>
#include <string>

#include "parse_int.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace fs = std::filesystem;
namespace {

/// The number after `oom_kill` in a file with lines "name number".
std::optional<uint64_t> oom_kill_line(const fs::path& path) {
  std::ifstream file(path);
  for (std::string name, value; file >> name >> value;) {
    if (name == "oom_kill") return parse_int(value);
  }
  return std::nullopt;
}

/// The group of this process from /proc/self/cgroup, or the root of the mount if that is a path of
/// the host.
fs::path own_group(const fs::path& proc, const fs::path& root, const std::string& controller) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) != controller) continue;
    const fs::path group = root / fs::path(line.substr(second + 1)).relative_path();
    if (std::error_code code; fs::is_directory(group, code)) return group;
  }
  return root;
}

}  // namespace

uint64_t num_oom_kills(const fs::path& proc, const fs::path& cgroup) {
  const auto v2 = oom_kill_line(own_group(proc, cgroup, "") / "memory.events");
  if (v2) return *v2;
  const fs::path memory = cgroup / "memory";
  const auto v1 = oom_kill_line(own_group(proc, memory, "memory") / "memory.oom_control");
  if (v1) return *v1;
  return oom_kill_line(proc / "vmstat").value_or(0);
}

}  // namespace sftrun::launch
