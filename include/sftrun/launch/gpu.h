#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// NVIDIA GPUs as the driver's management library (NVML, loaded at run time) describes them.
namespace sftrun::launch {

/// A process that computes on a GPU.
struct GpuProcess {
  int pid = 0;  ///< on the machine; in a container other than there
  std::optional<uint64_t> used_bytes;
};

/// Values that the driver does not report are absent.
struct GpuInfo {
  int index = 0;  ///< in PCI order, as in nvidia-smi
  std::string name, uuid;
  std::string pci_bus_id;  ///< "00000000:81:00.0"
  int numa_node = -1;      ///< -1: unknown
  int compute_major = 0, compute_minor = 0;
  std::optional<uint64_t> memory_total_bytes, memory_free_bytes;
  std::optional<int> utilization_percent, temperature_c;
  std::optional<double> power_w, power_limit_w;
  std::optional<int> sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<int> pcie_gen, pcie_gen_max, pcie_width, pcie_width_max;
  int num_nvlinks = 0;  ///< active links
  std::vector<GpuProcess> processes;

  /// Kernels are compiled for sm_80 (Ampere) and newer.
  bool is_too_old() const { return compute_major > 0 && compute_major < 8; }
};

struct GpuReport {
  std::vector<GpuInfo> gpus;
  std::string driver_version;   ///< "580.65.06"; empty without a driver
  int cuda_driver_version = 0;  ///< 13000 for 13.0
  /// links[i][j] connects GPU i and j, in nvidia-smi's terms: "X" itself, "NV18" 18 NVLinks, "PIX"
  /// one PCIe switch, "PXB" several, "PHB" the CPU's host bridge, "NODE" within a NUMA node, "SYS"
  /// between sockets, "?" unknown.
  std::vector<std::vector<std::string>> links;
  /// peer_access[i][j]: whether the driver lets GPU i read the memory of GPU j; nullopt: unknown.
  /// Empty without NVML.
  std::vector<std::vector<std::optional<bool>>> peer_access;
  std::string problem;  ///< why `gpus` is empty
};

/// What CUDA_VISIBLE_DEVICES leaves of the GPUs.
struct GpuVisibility {
  std::string setting;  ///< the variable's value
  /// Of the visible GPUs, into GpuReport::gpus: CUDA numbers them from 0 in this order.
  std::vector<size_t> visible;
  std::vector<size_t> hidden;
  std::string mig_slice;  ///< what CUDA shows instead of whole GPUs; empty: none
  std::string problem;    ///< an entry that is no GPU, or one that is there twice
  bool operator==(const GpuVisibility&) const = default;
};
/// nullopt: the variable is not set, and all GPUs are visible.
std::optional<GpuVisibility> gpu_visibility(const GpuReport& report);

/// Queries NVML; without it, counts /dev/nvidia*. Never throws.
/// @param library file to load; empty: SFTRUN_NVML_LIBRARY, else libnvidia-ml.so.1
GpuReport query_gpus(const std::string& library = {});

/// Why the GPUs of a machine with AMD's driver are not used; "": it has none.
/// @param root of the file system
std::string amd_complaint(const std::filesystem::path& root = "/");

/// A warning if the driver is too old (CUDA 13 needs driver 580). Empty if it is new enough or its
/// version is unknown.
std::string driver_complaint(const GpuReport& report);

}  // namespace sftrun::launch
