#include "config_init.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine_location.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"

namespace sftrun::app {

uint64_t MachineView::device_bytes() const {
  if (!trains_on_gpu()) return memory.total_bytes;
  uint64_t smallest = UINT64_MAX;
  for (const launch::GpuInfo& gpu : gpus.gpus)
    if (!gpu.is_too_old())
      smallest = std::min(smallest, gpu.memory_total_bytes.value_or(UINT64_MAX));
  return smallest;
}

std::vector<int> MachineView::usable_gpus() const {
  std::vector<int> usable;
  for (const launch::GpuInfo& gpu : gpus.gpus)
    if (can_use_gpus && !gpu.is_too_old()) usable.push_back(gpu.index);
  return usable;
}

std::string MachineView::suggested_devices() const {
  const std::vector<int> usable = usable_gpus();
  if (!can_use_gpus || usable.size() == gpus.gpus.size()) return "auto";
  const bool are_first = !usable.empty() && usable.back() + 1 == static_cast<int>(usable.size());
  if (are_first) return std::to_string(usable.size());
  return usable.size() > 1 ? fmt::format("{}", fmt::join(usable, ",")) : "cpu";
}

std::string MachineView::text() const {
  std::string devices = "no GPU";
  if (!gpus.gpus.empty())
    devices = fmt::format("{} ({})", counted(gpus.gpus.size(), "GPU"), gpus.gpus.front().name);
  if (!gpus.gpus.empty() && !can_use_gpus) devices += ", which this build cannot use";
  const size_t num_old = can_use_gpus ? gpus.gpus.size() - usable_gpus().size() : 0;
  if (num_old > 0)
    devices += fmt::format(", {}too old to train on (sm_80 or newer is required)",
                           num_old == gpus.gpus.size() ? "" : fmt::format("{} ", num_old));
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
