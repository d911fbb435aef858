// libcudart: devices and errors.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "cudart_error.h"
#include "entry.h"

namespace stand_in {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr int kVersion = 13000, kMultiprocessors = 132, kSharedPerMultiprocessor = 233472;

bool exists(int device) {
  return device >= 0 && device < settings().devices;
}

cudaError_t no_such_device() {
  return settings().devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice;
}

int attribute(cudaDeviceAttr which) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      return kMultiprocessors;
    case cudaDevAttrComputeCapabilityMajor:
      return settings().major;
    case cudaDevAttrComputeCapabilityMinor:
      return settings().minor;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return kSharedBytes;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return settings().shared_bytes_opt_in();
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return kSharedPerMultiprocessor;
    case cudaDevAttrMaxGridDimX:
      return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return settings().threads_per_multiprocessor();
    case cudaDevAttrWarpSize:
      return 32;
    default:
      return 1;
  }
}

void set_limits(cudaDeviceProp& p) {
  p.sharedMemPerBlock = kSharedBytes;
  p.sharedMemPerBlockOptin = static_cast<size_t>(settings().shared_bytes_opt_in());
  p.sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = settings().threads_per_multiprocessor();
  p.maxBlocksPerMultiProcessor = 32;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.l2CacheSize = 60 << 20;
  p.textureAlignment = 512;
}

}  // namespace

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return answer(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
STAND_IN_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaSetDevice(int device) {
  return answer(set_current_device(device) ? cudaSuccess : no_such_device());
}
STAND_IN_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!exists(device)) return answer(no_such_device());
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Stand-in GPU");
  properties->major = settings().major;
  properties->minor = settings().minor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->totalGlobalMem = settings().device_bytes;
  properties->pciBusID = device + 1;
  set_limits(*properties);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (!exists(device)) return answer(no_such_device());
  *value = attribute(which);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  if (!exists(device)) return answer(no_such_device());
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceSynchronize() {
  auto lock = lock_tables();
  if (const auto error = forbidden_in_capture("cudaDeviceSynchronize")) return answer(error);
  Event("sync").with("of", "device").with("device", current_device());
  const HangPointer hang = hang_of_device(current_device());
  lock.unlock();
  wait_until_over(hang);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                          unsigned, unsigned long long,
                                                          cudaDriverEntryPointQueryResult* result) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  *function = driver ? dlsym(driver, symbol) : nullptr;
  if (result)
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function || result ? cudaSuccess : answer(cudaErrorSymbolNotFound);
}

// ---- Errors.
STAND_IN_API cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
STAND_IN_API cudaError_t cudaPeekAtLastError() {
  return last_error;
}
STAND_IN_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "an error of the stand-in's runtime";
  }
}
STAND_IN_API const char* cudaGetErrorName(cudaError_t error) {
  thread_local std::string name;
  name = text("cudaError", static_cast<int>(error));
  return name.c_str();
}
