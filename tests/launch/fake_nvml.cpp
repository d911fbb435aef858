// Stands in for the driver's libnvidia-ml.so.1: GPUs as the environment describes them.
//   FAKE_NVML_GPUS    names separated by commas; a name with "V100" in it is of compute
//   capability 7.0, others of 9.0 FAKE_NVML_DRIVER  version; FAKE_NVML_BROKEN: initialisation fails
//   FAKE_NVML_PID     a process with 18 GiB on GPU 0; a second one, 4242, does not say how much
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Pci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;
};

constexpr int kNotSupported = 3;

std::vector<std::string> names() {
  std::vector<std::string> all;
  const char* text = std::getenv("FAKE_NVML_GPUS");
  std::string rest = text ? text : "";
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    all.push_back(rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return all;
}
size_t index_of(void* device) {
  return reinterpret_cast<uintptr_t>(device) - 1;
}
void write_bus_id(Pci* pci, size_t index) {
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02zX:00.0", 0x81 + index);
}

}  // namespace

extern "C" {
int nvmlInit_v2() {
  return std::getenv("FAKE_NVML_BROKEN") ? 18 : 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int) {
  return "Driver/library version mismatch";
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  const char* version = std::getenv("FAKE_NVML_DRIVER");
  std::snprintf(text, size, "%s", version ? version : "580.65.06");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return *version = 13000, 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return *count = static_cast<unsigned>(names().size()), 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index + 1)), 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "%s", names()[index_of(device)].c_str());
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%zuaaaaaaa-0000", index_of(device));
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  return write_bus_id(pci, index_of(device)), 0;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = names()[index_of(device)].find("V100") != std::string::npos ? 7 : 9;
  return *minor = 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  return *memory = {80ull << 30, 60ull << 30, 20ull << 30}, 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  const char* pid = std::getenv("FAKE_NVML_PID");
  if (!pid || index_of(device) > 0) return *count = 0;
  if (*count < 2) return 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  processes[0] = {static_cast<unsigned>(std::atoi(pid)), 18ull << 30, ~0u, ~0u};
  processes[1] = {4242, ~0ull, ~0u, ~0u};
  *count = 2;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* rates) {
  return *rates = {37, 12}, 0;
}
int nvmlDeviceGetTemperature(void*, unsigned sensor, unsigned* value) {
  return *value = sensor == 0 ? 45 : 0, 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* value) {
  return *value = 123400, 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned*) {
  return kNotSupported;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* value) {
  return *value = type == 1 ? 1410 : 2619, 0;
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned, unsigned* value) {
  return *value = 1980, 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* value) {
  return *value = 4, 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* value) {
  return *value = 5, 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* value) {
  return *value = 16, 0;
}
// nvmlDeviceGetMaxPcieLinkWidth is left out: an older driver may lack a function.
/// GPUs 0 and 1 share two links; the others have none.
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* up) {
  return *up = index_of(device) < 2 && names().size() >= 2 && link < 2, 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, Pci* pci) {
  return write_bus_id(pci, index_of(device) == 0 ? 1 : 0), 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void*, unsigned* level) {
  return *level = index_of(a) == 2 ? 50 : 40, 0;
}
int nvmlDeviceGetP2PStatus(void* a, void* b, unsigned, unsigned* status) {
  constexpr unsigned kChipsetNotSupported = 1;
  return *status = index_of(a) + index_of(b) == 1 ? 0 : kChipsetNotSupported, 0;
}
}
