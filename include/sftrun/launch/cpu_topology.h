#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// The processors this process may use, and how they are dealt to workers. Read from sysfs, without
/// hwloc.
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

/// Where each of `ids` sits, ordered by node, package, core, id. Unknown places are 0; an unknown
/// core is the CPU itself.
/// @param system /sys/devices/system
std::vector<Cpu> cpu_topology(const std::vector<int>& ids,
                              const std::filesystem::path& system = "/sys/devices/system");

/// "0-3,8" as 0, 1, 2, 3, 8; the kernel's list format.
std::vector<int> parse_cpu_list(const std::string& list);
std::string format_cpu_list(const std::vector<int>& cpus);

/// Deals whole cores to workers, next to each other, and for a worker whose device hangs on a NUMA
/// node from that node. Empty (no binding) for fewer than two workers, or where a worker would get
/// fewer than two CPUs: there the scheduler does better.
/// @param cpus as cpu_topology orders them
/// @param node_of_worker NUMA node of each worker's device; -1: none or unknown
std::vector<std::vector<int>> deal_cpus(const std::vector<Cpu>& cpus,
                                        const std::vector<int>& node_of_worker);

/// Names among "avx2", "avx512f", "avx512_bf16", "amx_bf16", … that matter for speed and that this
/// processor has.
std::vector<std::string> cpu_features(const std::filesystem::path& proc = "/proc");

/// Distinct cores of this machine (both hardware threads of one count once); 0 if unknown.
int num_physical_cores(const std::filesystem::path& system = "/sys/devices/system");

}  // namespace sftrun::launch
