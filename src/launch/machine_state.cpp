#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>

#include "sftrun/core/presence.h"
#include "sftrun/launch/cpu_topology.h"
#include "sftrun/launch/machine_check.h"

namespace sftrun::launch {
namespace fs = std::filesystem;
namespace {

std::optional<uint64_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::optional<uint64_t> free_bytes_of(const fs::path& directory) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) return std::nullopt;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

/// The directory itself, or the nearest above it.
fs::path nearest_existing(const fs::path& directory) {
  fs::path path = absolute_path(directory);
  while (!leads_to_file(path) && path.has_relative_path()) path = path.parent_path();
  return path;
}

std::vector<std::string> interfaces_that_are_up() {
  std::vector<std::string> names;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return names;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const bool is_up = (one->ifa_flags & IFF_UP) != 0 && one->ifa_addr != nullptr;
    if (is_up && std::find(names.begin(), names.end(), one->ifa_name) == names.end())
      names.emplace_back(one->ifa_name);
  }
  ::freeifaddrs(first);
  return names;
}

}  // namespace

MachineState read_machine_state(const std::vector<std::pair<std::string, fs::path>>& disks) {
  MachineState state{.gpus = query_gpus(),
                     .amd = amd_complaint(),
                     .env = current_environment(),
                     .cpu_model = observe::cpu_model(),
                     .logical_cpus = observe::logical_cpus(),
                     .allowed_cpus = allowed_cpus().size(),
                     .available_cpus = observe::available_cpus(),
                     .cpu_features = cpu_features(),
                     .memory = observe::memory_info(),
                     .shm_free_bytes = free_bytes_of("/dev/shm"),
                     .limits = {.locked_memory_bytes = soft_limit(RLIMIT_MEMLOCK),
                                .open_files = soft_limit(RLIMIT_NOFILE),
                                .processes = soft_limit(RLIMIT_NPROC)},
                     .interfaces = interfaces_that_are_up()};
  for (const auto& [use, directory] : disks) {
    const fs::path path = nearest_existing(directory);
    if (const auto free = free_bytes_of(path)) state.disks.push_back({use, path, *free});
  }
  std::error_code ignored;
  state.has_infiniband =
      leads_to_file("/sys/class/infiniband") && !fs::is_empty("/sys/class/infiniband", ignored);
  const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  state.year = static_cast<int>(std::chrono::year_month_day(today).year());
  return state;
}

}  // namespace sftrun::launch
