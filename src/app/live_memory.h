#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu_view.h"
#include "sftrun/launch/running.h"
#include "sftrun/observe/system.h"

/// What `sftrun memory-check` without a configuration prints: memory in use.
namespace sftrun::app {

struct LiveMemory {
  GpuView gpus;
  std::vector<launch::RunningRun> runs;
  observe::MemoryInfo host;
};
LiveMemory live_memory();

std::string as_text(const LiveMemory& memory);
nlohmann::ordered_json as_json(const LiveMemory& memory);

}  // namespace sftrun::app
