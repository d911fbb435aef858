#include "sftrun/launch/gpu_meter.h"

#include "nvml_library.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace {

/// NVML's handle of the GPU with that bus id; null: not found.
NvmlDevice device_at(const NvmlLibrary& nvml, const std::string& pci_bus_id) {
  unsigned count = 0;
  if (!nvml.pci_info || nvml.device_count(&count) != kNvmlSuccess) return nullptr;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    NvmlPciInfo place{};
    if (nvml.device_by_index(index, &device) == kNvmlSuccess &&
        nvml.pci_info(device, &place) == kNvmlSuccess &&
        ascii_lower(place.bus_id) == ascii_lower(pci_bus_id))
      return device;
  }
  return nullptr;
}

}  // namespace

struct GpuMeter::Open {
  NvmlLibrary nvml;
  NvmlDevice device = nullptr;

  ~Open() {
    if (nvml.shutdown) nvml.shutdown();
  }
};

GpuMeter::GpuMeter(const std::string& pci_bus_id, const std::string& library) {
  std::string problem;
  NvmlLibrary nvml = load_nvml(nvml_file(library), problem);
  if (!nvml.handle || nvml.init() != kNvmlSuccess) return;
  auto open = std::make_unique<Open>();
  open->nvml = std::move(nvml);
  open->device = device_at(open->nvml, pci_bus_id);
  if (open->device != nullptr && open->nvml.utilization) open_ = std::move(open);
}

GpuMeter::~GpuMeter() = default;
GpuMeter::GpuMeter(GpuMeter&&) noexcept = default;
GpuMeter& GpuMeter::operator=(GpuMeter&&) noexcept = default;

std::optional<double> GpuMeter::utilization_percent() const {
  NvmlUtilization rates{};
  if (!open_ || open_->nvml.utilization(open_->device, &rates) != kNvmlSuccess) return std::nullopt;
  return rates.gpu;
}

std::optional<uint64_t> GpuMeter::used_bytes() const {
  NvmlMemory memory{};
  if (!open_ || !open_->nvml.memory || open_->nvml.memory(open_->device, &memory) != kNvmlSuccess)
    return std::nullopt;
  return memory.used;
}

}  // namespace sftrun::launch
