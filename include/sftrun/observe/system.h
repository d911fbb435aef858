#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// What the operating system says of this process and machine. Nothing here throws: what cannot be
/// read is 0 or empty.
namespace sftrun::observe {

struct ProcessMemory {
  uint64_t resident_bytes = 0, peak_resident_bytes = 0;
};
/// VmRSS and VmHWM of this process.
ProcessMemory process_memory();
/// Sets the peak back to what is resident now (where the kernel lets us), to measure a phase.
bool reset_peak_memory();

struct MemoryInfo {
  uint64_t total_bytes = 0;      ///< the machine's, or the control group's limit where that is less
  uint64_t available_bytes = 0;  ///< that can be allocated without swapping or meeting the limit
  bool limited_by_cgroup = false;
};
/// @param proc, cgroup where these file systems are mounted (tests give their own)
MemoryInfo memory_info(const std::filesystem::path& proc = "/proc",
                       const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Processors this process may keep busy: its affinity mask, or the control group's CPU quota where
/// that is less; at least 1.
double available_cpus(const std::filesystem::path& proc = "/proc",
                      const std::filesystem::path& cgroup = "/sys/fs/cgroup");

std::string cpu_model(const std::filesystem::path& proc = "/proc");  ///< "AMD EPYC 9B14"
int logical_cpus();                                                  ///< online on this machine
std::string host_name();

}  // namespace sftrun::observe
