#include "config_init.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine_location.h"
#include "gpu_view.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"

namespace sftrun::app {

uint64_t MachineView::device_bytes() const {
  if (!trains_on_gpu()) return memory.total_bytes;
  uint64_t smallest = UINT64_MAX;
  for (const launch::GpuInfo& gpu : gpus)
    if (!gpu.is_too_old())
      smallest = std::min(smallest, gpu.memory_total_bytes.value_or(UINT64_MAX));
  return smallest;
}

std::vector<int> MachineView::usable_gpus() const {
  std::vector<int> usable;
  for (size_t i = 0; i < gpus.size(); ++i)
    if (can_use_gpus && !gpus[i].is_too_old()) usable.push_back(static_cast<int>(i));
  return usable;
}

std::string MachineView::suggested_devices() const {
  const std::vector<int> usable = usable_gpus();
  if (!can_use_gpus || usable.size() == gpus.size()) return "auto";
  if (usable.empty()) return "cpu";
  const bool are_first = usable.back() + 1 == static_cast<int>(usable.size());
  if (are_first) return std::to_string(usable.size());
  return fmt::format("{}{}", fmt::join(usable, ","), usable.size() == 1 ? "," : "");
}

std::string MachineView::text() const {
  std::string devices = "no GPU";
  if (!gpus.empty()) devices = fmt::format("{} ({})", counted(gpus.size(), "GPU"), gpus[0].name);
  if (!gpus.empty() && !can_use_gpus) devices += ", which this build cannot use";
  const size_t num_old = can_use_gpus ? gpus.size() - usable_gpus().size() : 0;
  if (num_old > 0)
    devices += fmt::format(", {}too old to train on (sm_80 or newer is required)",
                           num_old == gpus.size() ? "" : fmt::format("{} ", num_old));
  if (num_hidden_gpus > 0)
    devices += fmt::format(" ({} hidden by CUDA_VISIBLE_DEVICES)", num_hidden_gpus);
  return fmt::format("This machine: {}, {:g} processors, {} of memory", devices, cpus,
                     format_bytes(memory.total_bytes));
}

MachineView view_of_machine() {
  GpuView view = view_of(launch::query_gpus());
  return {.gpus = std::move(view.shown.gpus),
          .num_hidden_gpus = view.hidden.size(),
          .can_use_gpus = has_cuda_kernels(),
          .memory = observe::memory_info(),
          .cpus = observe::available_cpus()};
}

int run_init(const InitOptions& options) {
  return options.machine ? init_machine(options) : init_run(options);
}

}  // namespace sftrun::app
