#include "config_init.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine_location.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"

namespace sftrun::app {

uint64_t MachineView::device_bytes() const {
  if (!trains_on_gpu()) return memory.total_bytes;
  uint64_t smallest = UINT64_MAX;
  for (const launch::GpuInfo& gpu : gpus.gpus)
    smallest = std::min(smallest, gpu.memory_total_bytes.value_or(UINT64_MAX));
  return smallest;
}

std::string MachineView::text() const {
  std::string devices = "no GPU";
  if (!gpus.gpus.empty())
    devices = fmt::format("{} ({})", counted(gpus.gpus.size(), "GPU"), gpus.gpus.front().name);
  if (!gpus.gpus.empty() && !can_use_gpus) devices += ", which this build cannot use";
  return fmt::format("This machine: {}, {:g} processors, {} of memory", devices, cpus,
                     format_bytes(memory.total_bytes));
}

MachineView view_of_machine() {
  return {.gpus = launch::query_gpus(),
          .can_use_gpus = has_cuda_kernels(),
          .memory = observe::memory_info(),
          .cpus = observe::available_cpus()};
}

int run_init(const InitOptions& options) {
  return options.machine ? init_machine(options) : init_run(options);
}

}  // namespace sftrun::app
