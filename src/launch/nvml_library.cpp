#include "nvml_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace sftrun::launch {
namespace {

template <typename Function>
void find(const NvmlLibrary& library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.handle.get(), symbol));
}

}  // namespace

void NvmlLibrary::Unload::operator()(void* handle) const {
  ::dlclose(handle);
}

std::string nvml_file(const std::string& given) {
  if (!given.empty()) return given;
  const char* from_env = std::getenv("SFTRUN_NVML_LIBRARY");
  return from_env && *from_env ? from_env : "libnvidia-ml.so.1";
}

NvmlLibrary load_nvml(const std::string& file, std::string& problem) {
  NvmlLibrary nvml;
  nvml.handle.reset(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!nvml.handle) {
    problem = "no NVIDIA driver found (" + file + " is not installed)";
    return nvml;
  }
  find(nvml, "nvmlInit_v2", nvml.init);
  find(nvml, "nvmlShutdown", nvml.shutdown);
  find(nvml, "nvmlErrorString", nvml.error_string);
  find(nvml, "nvmlSystemGetDriverVersion", nvml.driver_version);
  find(nvml, "nvmlSystemGetCudaDriverVersion_v2", nvml.cuda_driver_version);
  find(nvml, "nvmlDeviceGetCount_v2", nvml.device_count);
  find(nvml, "nvmlDeviceGetHandleByIndex_v2", nvml.device_by_index);
  find(nvml, "nvmlDeviceGetName", nvml.name);
  find(nvml, "nvmlDeviceGetUUID", nvml.uuid);
  find(nvml, "nvmlDeviceGetPciInfo_v3", nvml.pci_info);
  find(nvml, "nvmlDeviceGetCudaComputeCapability", nvml.compute_capability);
  find(nvml, "nvmlDeviceGetMemoryInfo", nvml.memory);
  find(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.compute_processes);
  find(nvml, "nvmlDeviceGetUtilizationRates", nvml.utilization);
  find(nvml, "nvmlDeviceGetTemperature", nvml.temperature);
  find(nvml, "nvmlDeviceGetPowerUsage", nvml.power_usage);
  find(nvml, "nvmlDeviceGetEnforcedPowerLimit", nvml.power_limit);
  find(nvml, "nvmlDeviceGetClockInfo", nvml.clock);
  find(nvml, "nvmlDeviceGetMaxClockInfo", nvml.max_clock);
  find(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", nvml.pcie_gen);
  find(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.pcie_gen_max);
  find(nvml, "nvmlDeviceGetCurrPcieLinkWidth", nvml.pcie_width);
  find(nvml, "nvmlDeviceGetMaxPcieLinkWidth", nvml.pcie_width_max);
  find(nvml, "nvmlDeviceGetNvLinkState", nvml.nvlink_state);
  find(nvml, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.nvlink_remote_pci);
  find(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", nvml.nvlink_remote_type);
  find(nvml, "nvmlDeviceGetTopologyCommonAncestor", nvml.common_ancestor);
  find(nvml, "nvmlDeviceGetP2PStatus", nvml.p2p_status);
  if (!nvml.init || !nvml.device_count || !nvml.device_by_index) {
    problem = file + " lacks nvmlInit_v2, nvmlDeviceGetCount_v2 or nvmlDeviceGetHandleByIndex_v2";
    nvml.handle.reset();
  }
  return nvml;
}

}  // namespace sftrun::launch
