#pragma once

#include <string>
#include <vector>

#include "sftrun/launch/gpu.h"
#include "sftrun/launch/worker_env.h"

namespace sftrun::launch {

/// A GPU that CUDA would show to this process.
struct VisibleGpu {
  std::string id;  ///< its id in CUDA_VISIBLE_DEVICES
  int index = -1;  ///< into GpuReport::gpus; -1: a MIG slice
};

/// The GPUs of the report that CUDA_VISIBLE_DEVICES makes visible, in its order and by its rules:
/// indices or (prefixes of) UUIDs; the list ends at the first word that is not a GPU; of several
/// MIG slices CUDA uses the first. @throws ConfigError if a GPU is named twice
std::vector<VisibleGpu> visible_gpus(const GpuReport& report, const Environment& env);

/// `--gpus`: "" all, "2" the first two, "0,2,3" or "1," these of the visible ones. @throws
/// ConfigError
std::vector<VisibleGpu> select_gpus(const std::vector<VisibleGpu>& visible,
                                    const std::string& gpus);

}  // namespace sftrun::launch
