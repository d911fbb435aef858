#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// The processors that this process may use, and their distribution over workers. Read from sysfs,
/// without hwloc.
namespace sftrun::launch {

struct Cpu {
  int id = 0;
  int node = 0;     ///< NUMA node
  int package = 0;  ///< socket
  int core = 0;     ///< within the package; hardware threads of one core share it
  bool operator==(const Cpu&) const = default;
};

/// The affinity mask of this process, ascending.
std::vector<int> allowed_cpus();

/// Node, package and core of each of `ids`, ordered by node, package, core, id. Unknown values are
/// 0; an unknown core is the CPU itself.
/// @param system /sys/devices/system
std::vector<Cpu> cpu_topology(const std::vector<int>& ids,
                              const std::filesystem::path& system = "/sys/devices/system");

/// "0-3,8" as 0, 1, 2, 3, 8; the kernel's list format.
std::vector<int> parse_cpu_list(const std::string& list);
std::string format_cpu_list(const std::vector<int>& cpus);

/// Assigns neighbouring whole cores to workers; a worker whose device belongs to a NUMA node gets
/// cores of that node. Empty (no binding) for fewer than two workers, or if a worker would get
/// fewer than two CPUs, because then the operating system's scheduler is better.
/// @param cpus as cpu_topology orders them
/// @param node_of_worker NUMA node of each worker's device; -1: none or unknown
std::vector<std::vector<int>> deal_cpus(const std::vector<Cpu>& cpus,
                                        const std::vector<int>& node_of_worker);

/// The features of this processor that matter for speed: "avx2", "avx512f", "avx512_bf16",
/// "amx_bf16", …
std::vector<std::string> cpu_features(const std::filesystem::path& proc = "/proc");

/// Most threads that a command may start. Far more than the machine's processors only wait for each
/// other, for minutes in one loop.
int max_threads();

/// Number of cores of this machine (hardware threads of a core count once); 0 if unknown.
int num_physical_cores(const std::filesystem::path& system = "/sys/devices/system");

}  // namespace sftrun::launch
