#pragma once

#include <cstdint>
#include <filesystem>

namespace sftrun::launch {

/// Processes that the kernel's OOM killer has taken so far: in this process's control group where
/// it keeps count (memory.events of v2, memory.oom_control of v1), else on the machine
/// (/proc/vmstat). Only differences mean something. 0 if unknown.
/// @param proc, cgroup where these file systems are mounted (tests give their own)
uint64_t num_oom_kills(const std::filesystem::path& proc = "/proc",
                       const std::filesystem::path& cgroup = "/sys/fs/cgroup");

}  // namespace sftrun::launch
