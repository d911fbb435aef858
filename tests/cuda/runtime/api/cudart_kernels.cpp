// libcudart: what compiled CUDA code registers, and its launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <vector>

#include "../device/faults.h"
#include "../device/kernels.h"
#include "cudart_error.h"
#include "entry.h"

namespace stand_in {
namespace {

/// Between <<<…>>> and the launch of it (nvcc's two calls).
thread_local std::vector<Launch> configurations;

/// Variables on the device, by the address of their host twins.
struct Variable {
  size_t size = 0;
  std::map<int, void*> addresses;  // by device
};

std::map<const void*, Variable>& variables() {
  static auto* const result = new std::map<const void*, Variable>;  // outlives every destructor
  return *result;
}

void* address_of_variable(const void* symbol) {
  const auto found = variables().find(symbol);
  require(found != variables().end(), symbol, " is no registered device variable");
  void*& address = found->second.addresses[current_device()];
  if (address == nullptr) address = allocate(current_device(), found->second.size);
  return address;
}

cudaError_t launched(const Launch& what) {
  before_launch();
  const auto lock = lock_tables();
  launch(what);
  return cudaSuccess;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
STAND_IN_API void __cudaRegisterFatBinaryEnd(void**) {}
STAND_IN_API void __cudaUnregisterFatBinary(void**) {}
STAND_IN_API char __cudaInitModule(void**) {
  return 1;
}
STAND_IN_API void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int,
                                    int) {
  const auto lock = lock_tables();
  variables()[host].size = size;
}
STAND_IN_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name,
                                         int max_threads, void*, void*, void*, void*, int*) {
  const auto lock = lock_tables();
  register_kernel(host, name, max_threads);
}
STAND_IN_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                  cudaStream_t stream) {
  configurations.push_back({nullptr, grid, block, shared_bytes, stream});
  return 0;
}
STAND_IN_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                                    void* stream) {
  const Launch last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
STAND_IN_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
STAND_IN_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**,
                                            size_t shared_bytes, cudaStream_t stream) {
  return launched({kernel, grid, block, shared_bytes, stream});
}
STAND_IN_API cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**,
                                          size_t shared_bytes, cudaStream_t stream) {
  return launched({kernel, grid, block, shared_bytes, stream});
}
STAND_IN_API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block,
                                                     void**, size_t shared_bytes,
                                                     cudaStream_t stream) {
  return launched({kernel, grid, block, shared_bytes, stream});
}
STAND_IN_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration,
                                             const void* kernel, void**) {
  return launched({kernel, configuration->gridDim, configuration->blockDim,
                   configuration->dynamicSmemBytes, configuration->stream});
}
STAND_IN_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const auto lock = lock_tables();
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = 10 * settings().major + settings().minor;
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = allowed_shared_bytes(kernel);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which,
                                              int value) {
  const auto lock = lock_tables();
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) allow_shared_bytes(kernel, value);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int threads, size_t shared_bytes, unsigned) {
  const int by_threads = settings().threads_per_multiprocessor() / std::max(threads, 1);
  const auto by_memory =
      static_cast<int>(size_t{233472} / std::max<size_t>(shared_bytes + 1024, 1));
  *blocks = std::min({by_threads, by_memory, 32});
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                       const void* kernel,
                                                                       int threads,
                                                                       size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads,
                                                                shared_bytes, 0);
}

// ---- Variables on the device.
STAND_IN_API cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  const auto lock = lock_tables();
  *address = address_of_variable(symbol);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t size,
                                            size_t offset, cudaMemcpyKind kind) {
  const auto lock = lock_tables();
  char* address = static_cast<char*>(address_of_variable(symbol));
  return cudaMemcpy(address + offset, from, size, kind);
}
