#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// Memory and processors of this process and machine. Nothing here throws: values that cannot be
/// read are 0 or empty.
namespace sftrun::observe {

struct ProcessMemory {
  uint64_t resident_bytes = 0, peak_resident_bytes = 0;
};
/// VmRSS and VmHWM of this process.
ProcessMemory process_memory();

/// Processor time of this process.
class CpuMeter {
 public:
  CpuMeter();
  /// Percent of one processor since the last call, or since the meter was made: 200 is two
  /// processors. All threads of the process count.
  double utilization_percent();

 private:
  double wall_s_, cpu_s_;  // at the last call
};

struct MemoryInfo {
  uint64_t total_bytes = 0;      ///< of the machine, or the control group's limit if lower
  uint64_t available_bytes = 0;  ///< can be allocated without swapping or exceeding the limit
  bool limited_by_cgroup = false;
};
/// @param proc, cgroup mount points of these file systems; tests pass their own
MemoryInfo memory_info(const std::filesystem::path& proc = "/proc",
                       const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Number of processors that this process may use: its affinity mask, or the control group's CPU
/// quota if lower; at least 1.
double available_cpus(const std::filesystem::path& proc = "/proc",
                      const std::filesystem::path& cgroup = "/sys/fs/cgroup");

std::string cpu_model(const std::filesystem::path& proc = "/proc");  ///< "AMD EPYC 9B14"
int logical_cpus();                                                  ///< online on this machine
std::string host_name();

}  // namespace sftrun::observe
