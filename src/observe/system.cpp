#include "sftrun/observe/system.h"

#include <sched.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/core/clock.h"
#include "sftrun/core/strings.h"

namespace sftrun::observe {
namespace fs = std::filesystem;
namespace {

std::string slurp(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<uint64_t> parse_u64(std::string_view text) {
  text = trim(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

/// The value behind `key` in a file of lines "key<separator>value".
std::optional<std::string> field(const fs::path& path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(separator);
    if (at != std::string::npos && trim(std::string_view(line).substr(0, at)) == key) {
      return std::string(trim(std::string_view(line).substr(at + 1)));
    }
  }
  return std::nullopt;
}

/// Parses "1234 kB" in /proc files; in bytes.
uint64_t kib_field(const fs::path& path, std::string_view key) {
  const auto value = field(path, key, ':');
  return value ? parse_u64(*value).value_or(0) * 1024 : 0;
}

/// The directories of this process's control group and its ancestors, innermost first; the limits
/// of all of them apply.
/// @param controller "" for the unified hierarchy (v2); "memory", "cpu" for v1
std::vector<fs::path> cgroup_chain(const fs::path& proc, const fs::path& root,
                                   std::string_view controller) {
  std::ifstream file(proc / "self/cgroup");
  std::string group = "/";
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end())
      continue;
    group = line.substr(second + 1);
  }
  std::vector<fs::path> chain;
  // In a container the path may be the host's, which is not visible here; then the root of the
  // mount is the container's own group.
  for (fs::path at = fs::path(group).relative_path(); !at.empty(); at = at.parent_path()) {
    if (std::error_code code; fs::is_directory(root / at, code)) chain.push_back(root / at);
  }
  chain.push_back(root);
  return chain;
}

/// What may still be allocated under a limit; unused page cache counts as free.
uint64_t room_under(uint64_t limit, uint64_t used, const fs::path& stat,
                    std::string_view cache_key) {
  const auto cache = field(stat, cache_key, ' ');
  used -= std::min(used, cache ? parse_u64(*cache).value_or(0) : 0);
  return limit - std::min(limit, used);
}

/// Every ancestor counts: an outer group with a larger limit may have less memory left.
void apply_limit(MemoryInfo& info, std::optional<uint64_t> limit, uint64_t used,
                 const fs::path& stat, std::string_view cache_key) {
  if (!limit) return;
  info.available_bytes = std::min(info.available_bytes, room_under(*limit, used, stat, cache_key));
  if (*limit >= info.total_bytes) return;
  info.total_bytes = *limit;
  info.limited_by_cgroup = true;
}

std::optional<double> cpu_quota(const fs::path& proc, const fs::path& cgroup) {
  std::optional<double> least;
  const auto consider = [&](double quota) { least = least ? std::min(*least, quota) : quota; };
  for (const fs::path& group : cgroup_chain(proc, cgroup, "")) {
    const auto words = split(std::string(trim(slurp(group / "cpu.max"))), ' ');
    if (words.size() != 2 || words[0] == "max") continue;
    const auto quota = parse_u64(words[0]), period = parse_u64(words[1]);
    if (quota && period && *period > 0) {
      consider(static_cast<double>(*quota) / static_cast<double>(*period));
    }
  }
  for (const fs::path& group : cgroup_chain(proc, cgroup / "cpu", "cpu")) {
    const auto quota =
        parse_u64(slurp(group / "cpu.cfs_quota_us"));  // -1 (no limit) does not parse
    const auto period = parse_u64(slurp(group / "cpu.cfs_period_us"));
    if (quota && period && *period > 0) {
      consider(static_cast<double>(*quota) / static_cast<double>(*period));
    }
  }
  return least;
}

double process_cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

ProcessMemory process_memory() {
  return {.resident_bytes = kib_field("/proc/self/status", "VmRSS"),
          .peak_resident_bytes = kib_field("/proc/self/status", "VmHWM")};
}

CpuMeter::CpuMeter() : wall_s_(monotonic_seconds()), cpu_s_(process_cpu_seconds()) {}

double CpuMeter::utilization_percent() {
  const double wall = monotonic_seconds(), cpu = process_cpu_seconds();
  const double passed = wall - std::exchange(wall_s_, wall),
               used = cpu - std::exchange(cpu_s_, cpu);
  return passed > 0 ? 100 * used / passed : 0;
}

MemoryInfo memory_info(const fs::path& proc, const fs::path& cgroup) {
  MemoryInfo info{.total_bytes = kib_field(proc / "meminfo", "MemTotal"),
                  .available_bytes = kib_field(proc / "meminfo", "MemAvailable")};
  for (const fs::path& group : cgroup_chain(proc, cgroup, "")) {
    apply_limit(info, parse_u64(slurp(group / "memory.max")),
                parse_u64(slurp(group / "memory.current")).value_or(0), group / "memory.stat",
                "inactive_file");
  }
  for (const fs::path& group : cgroup_chain(proc, cgroup / "memory", "memory")) {
    apply_limit(info, parse_u64(slurp(group / "memory.limit_in_bytes")),
                parse_u64(slurp(group / "memory.usage_in_bytes")).value_or(0),
                group / "memory.stat", "total_inactive_file");
  }
  return info;
}

double available_cpus(const fs::path& proc, const fs::path& cgroup) {
  cpu_set_t set;
  const int in_mask =
      ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : logical_cpus();
  const double cpus =
      std::min(static_cast<double>(in_mask), cpu_quota(proc, cgroup).value_or(in_mask));
  return std::max(cpus, 1.0);
}

std::string cpu_model(const fs::path& proc) {
  for (const std::string_view key : {"model name", "Model", "Hardware"}) {  // x86; some Arm boards
    if (auto name = field(proc / "cpuinfo", key, ':')) return *name;
  }
  return {};
}

int logical_cpus() {
  return static_cast<int>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

std::string host_name() {
  utsname names{};
  return ::uname(&names) == 0 ? names.nodename : std::string();
}

}  // namespace sftrun::observe
