#pragma once

#include <memory>
#include <string>

/// The functions of NVML that are used. They are declared here, so that building needs neither
/// NVML's header nor its library. Signatures and constants: NVML API reference
/// (docs.nvidia.com/deploy/nvml-api).
namespace sftrun::launch {

using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kNvmlTemperatureGpu = 0, kNvmlClockSm = 1, kNvmlClockMem = 2;
constexpr unsigned kNvmlMaxLinks = 18;
constexpr unsigned kNvmlP2pRead = 0, kNvmlP2pOk = 0;  // nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t
constexpr unsigned kNvmlRemoteGpu = 0, kNvmlRemoteSwitch = 2;

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;  ///< kNvmlNotAvailable: not reported
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kNvmlNotAvailable = ~0ULL;

/// A pointer is null if the driver's library does not have the function.
struct NvmlLibrary {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_driver_version)(int*) = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci_info)(NvmlDevice, NvmlPciInfo*) = nullptr;
  int (*compute_capability)(NvmlDevice, int*, int*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*compute_processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power_usage)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*pcie_gen)(NvmlDevice, unsigned*) = nullptr;
  int (*pcie_gen_max)(NvmlDevice, unsigned*) = nullptr;
  int (*pcie_width)(NvmlDevice, unsigned*) = nullptr;
  int (*pcie_width_max)(NvmlDevice, unsigned*) = nullptr;
  int (*nvlink_state)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*nvlink_remote_pci)(NvmlDevice, unsigned, NvmlPciInfo*) = nullptr;
  int (*nvlink_remote_type)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*common_ancestor)(NvmlDevice, NvmlDevice, unsigned*) = nullptr;
  int (*p2p_status)(NvmlDevice, NvmlDevice, unsigned, unsigned*) = nullptr;

  struct Unload {
    void operator()(void* handle) const;
  };
  std::unique_ptr<void, Unload> handle;
};

/// The library's file: `given`, else SFTRUN_NVML_LIBRARY, else libnvidia-ml.so.1.
std::string nvml_file(const std::string& given);

/// Loads the library; If the handle is null, `problem` says why.
NvmlLibrary load_nvml(const std::string& file, std::string& problem);

}  // namespace sftrun::launch
