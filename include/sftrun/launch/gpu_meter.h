#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace sftrun::launch {

/// Utilization and memory of one GPU, from NVML, read once per step. Without the driver's library
/// they are unknown.
class GpuMeter {
 public:
  /// @param pci_bus_id of the GPU: "00000000:81:00.0", in upper or lower case
  /// @param library as in query_gpus
  explicit GpuMeter(const std::string& pci_bus_id, const std::string& library = {});
  ~GpuMeter();
  GpuMeter(GpuMeter&&) noexcept;
  GpuMeter& operator=(GpuMeter&&) noexcept;

  /// Percent of the last sample period (up to a second) in which a kernel ran.
  std::optional<double> utilization_percent() const;
  /// Memory in use, by all processes.
  std::optional<uint64_t> used_bytes() const;

 private:
  struct Open;
  std::unique_ptr<Open> open_;  // null: not found
};

}  // namespace sftrun::launch
