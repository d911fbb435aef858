// libcuda.so.1 and libnvidia-ml.so.1 in one: what the engine and the launcher ask of a driver.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
int device_count() {
  return setting("SFTRUN_HOST_BACKED_DEVICES", 1);
}
int compute_capability() {
  return setting("SFTRUN_HOST_BACKED_SM", 90);
}
struct Memory {
  unsigned long long total, free, used;
};
constexpr const char* kName = "host-backed device";
}  // namespace

extern "C" {
int cuInit(unsigned /*flags*/) {
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = device_count();
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int length, int /*device*/) {
  std::snprintf(name, static_cast<size_t>(length), "%s", kName);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  constexpr int kComputeMajor = 75, kComputeMinor = 76;
  *value = attribute == kComputeMajor   ? compute_capability() / 10
           : attribute == kComputeMinor ? compute_capability() % 10
                                        : 0;
  return 0;
}

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(device_count());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = reinterpret_cast<void*>(static_cast<size_t>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void* /*handle*/, char* name, unsigned length) {
  std::snprintf(name, length, "%s", kName);
  return 0;
}
int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-%zu", reinterpret_cast<size_t>(handle));
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* /*handle*/, int* major, int* minor) {
  *major = compute_capability() / 10;
  *minor = compute_capability() % 10;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* /*handle*/, Memory* memory) {
  const auto total = static_cast<unsigned long long>(setting("SFTRUN_HOST_BACKED_MIB", 8192)) << 20;
  *memory = {total, total, 0};
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "580.0");
  return 0;
}
}
