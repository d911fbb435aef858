// libnvidia-ml: cards, their memory and their place. Declared here, as its header is no part of
// what the program is built with (NVML API reference).
#include <cstdio>

#include "entry.h"

namespace stand_in {
namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3;

struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

using Device = void*;

/// Handles are numbers from 1.
int ordinal(Device device) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1;
}

int write(char* to, unsigned size, const std::string& value) {
  std::snprintf(to, size, "%s", value.c_str());
  return kSuccess;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API int nvmlInit_v2() {
  return kSuccess;
}
STAND_IN_API int nvmlShutdown() {
  return kSuccess;
}
STAND_IN_API const char* nvmlErrorString(int) {
  return "an answer of the stand-in";
}
STAND_IN_API int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return write(version, size, "580.65.06");
}
STAND_IN_API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(settings().devices);
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (static_cast<int>(index) >= settings().devices) return kInvalidArgument;
  *device = reinterpret_cast<Device>(uintptr_t{index} + 1);
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(id, "%x:%x", &domain, &bus) != 2 || bus == 0) return kInvalidArgument;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
STAND_IN_API int nvmlDeviceGetUtilizationRates(Device device, unsigned* gpu_and_memory) {
  gpu_and_memory[0] = 40 + static_cast<unsigned>(ordinal(device));
  gpu_and_memory[1] = 0;
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetName(Device, char* name, unsigned size) {
  return write(name, size, "Stand-in GPU");
}
STAND_IN_API int nvmlDeviceGetUUID(Device device, char* uuid, unsigned size) {
  return write(uuid, size, text("GPU-00000000-0000-0000-0000-00000000000", ordinal(device)));
}
STAND_IN_API int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  *info = {};
  info->bus = static_cast<unsigned>(ordinal(device)) + 1;
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  std::snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus);
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetCudaComputeCapability(Device, int* major, int* minor) {
  *major = settings().major;
  *minor = settings().minor;
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  const auto lock = lock_tables();
  memory->total = settings().device_bytes;
  memory->free = free_bytes(ordinal(device));
  memory->used = memory->total - memory->free;
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetComputeRunningProcesses(Device, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}
STAND_IN_API int nvmlDeviceGetNvLinkState(Device, unsigned, unsigned*) {
  return kNotSupported;
}
STAND_IN_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, PciInfo*) {
  return kNotSupported;
}
STAND_IN_API int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, unsigned*) {
  return kNotSupported;
}
STAND_IN_API int nvmlDeviceGetTopologyCommonAncestor(Device, Device, unsigned* level) {
  *level = 30;  // NVML_TOPOLOGY_HOSTBRIDGE
  return kSuccess;
}
