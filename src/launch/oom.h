#pragma once

#include <cstdint>
#include <filesystem>

namespace sftrun::launch {

/// Number of processes that the kernel's OOM killer has killed: in this process's control group if
/// it counts them (memory.events of v2, memory.oom_control of v1), else on the machine
/// (/proc/vmstat). Only differences have a meaning. 0 if unknown.
/// @param proc, cgroup mount points (tests use their own)
uint64_t num_oom_kills(const std::filesystem::path& proc = "/proc",
                       const std::filesystem::path& cgroup = "/sys/fs/cgroup");

}  // namespace sftrun::launch
