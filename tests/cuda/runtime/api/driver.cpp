// libcuda: what LibTorch asks of the driver, virtual memory among it, and what the program asks.
#include <cuda.h>

#include <cstdio>
#include <map>

#include "entry.h"

namespace stand_in {
namespace {

/// Of cuMemCreate, until cuMemRelease; mappings hold the bytes themselves.
std::map<CUmemGenericAllocationHandle, std::shared_ptr<Bytes>>& handles() {
  static auto* const result =
      new std::map<CUmemGenericAllocationHandle, std::shared_ptr<Bytes>>;  // outlives destructors
  return *result;
}

CUmemGenericAllocationHandle hand_out(std::shared_ptr<Bytes> bytes) {
  static CUmemGenericAllocationHandle last = 0;
  handles()[++last] = std::move(bytes);
  return last;
}

const std::shared_ptr<Bytes>& bytes_of(CUmemGenericAllocationHandle handle, const char* what) {
  const auto found = handles().find(handle);
  require(found != handles().end(), what, " of a handle that was released or never created");
  return found->second;
}

char* pointer(CUdeviceptr address) {
  return reinterpret_cast<char*>(address);
}

void require_whole(size_t size, const char* what) {
  require(size != 0 && size % kGranularity == 0, what, " of ", size,
          " bytes, no multiple of the granularity");
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

// ---- Devices and contexts.
STAND_IN_API CUresult cuInit(unsigned) {
  return settings().devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
STAND_IN_API CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuDeviceGetCount(int* count) {
  *count = settings().devices;
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < settings().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
STAND_IN_API CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "Stand-in GPU");
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = settings().major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = settings().minor;
      break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = 1;
      break;
    default:  // fabric handles, RDMA, multicast
      *value = 0;
  }
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuCtxGetCurrent(CUcontext* context) {
  return cuDevicePrimaryCtxRetain(context, current_device());
}
STAND_IN_API CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuGetErrorString(CUresult error, const char** result) {
  *result = error == CUDA_SUCCESS               ? "no error"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                                : "an error of the stand-in's driver";
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuGetErrorName(CUresult error, const char** result) {
  return cuGetErrorString(error, result);
}

// ---- Virtual memory, which expandable segments are made of.
STAND_IN_API CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                                    CUmemAllocationGranularity_flags) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr,
                                          unsigned long long) {
  const auto lock = lock_tables();
  require_whole(size, "cuMemAddressReserve");
  *address = reinterpret_cast<CUdeviceptr>(reserve_addresses(size));
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  const auto lock = lock_tables();
  release_addresses(pointer(address), size);
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                  const CUmemAllocationProp* properties, unsigned long long) {
  const auto lock = lock_tables();
  require_whole(size, "cuMemCreate");
  const int device = properties->location.id;
  auto bytes = take_bytes(device, size);
  Event("malloc")
      .with("bytes", size)
      .with("device", device)
      .with("failed", bytes == nullptr)
      .with("virtual", true);
  if (!bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = hand_out(std::move(bytes));
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const auto lock = lock_tables();
  const int device = bytes_of(handle, "cuMemRelease")->device();
  handles().erase(handle);
  Event("free").with("device", device).with("virtual", true);
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                               CUmemGenericAllocationHandle handle, unsigned long long) {
  const auto lock = lock_tables();
  require_whole(size, "cuMemMap");
  map_bytes(pointer(address), size, offset, bytes_of(handle, "cuMemMap"));
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  const auto lock = lock_tables();
  unmap_bytes(pointer(address), size);
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc*,
                                     size_t) {
  const auto lock = lock_tables();
  allow_access(pointer(address), size);
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                  void* address) {
  const auto lock = lock_tables();
  auto bytes = bytes_at(address);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *handle = hand_out(std::move(bytes));
  return CUDA_SUCCESS;
}
STAND_IN_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                             CUmemGenericAllocationHandle handle) {
  const auto lock = lock_tables();
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = bytes_of(handle, "cuMemGetAllocationPropertiesFromHandle")->device();
  return CUDA_SUCCESS;
}

// ---- Descriptions of tensors, for kernels that load tiles by themselves. What the driver refuses
// is refused (CUDA driver API, cuTensorMapEncodeTiled).
STAND_IN_API CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                             void* data, const cuuint64_t* sizes,
                                             const cuuint64_t* strides, const cuuint32_t* box,
                                             const cuuint32_t* steps, CUtensorMapInterleave,
                                             CUtensorMapSwizzle, CUtensorMapL2promotion,
                                             CUtensorMapFloatOOBfill) {
  const auto lock = lock_tables();
  *map = {};
  bool holds = rank >= 1 && rank <= 5 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (cuuint32_t i = 0; holds && i < rank; ++i) {
    holds = sizes[i] >= 1 && sizes[i] <= (uint64_t{1} << 32) && box[i] >= 1 && box[i] <= 256 &&
            steps[i] >= 1 && steps[i] <= 8;
  }
  for (cuuint32_t i = 0; holds && i + 1 < rank; ++i) holds = strides[i] % 16 == 0;
  return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
