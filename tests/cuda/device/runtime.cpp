// CUDA's runtime as far as src/cuda and inline functions of LibTorch's headers call it, hidden
// inside the library with the emulated kernels; and the gate that opens the card's memory to them.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "emulator.h"

extern "C" void host_backed_open_memory();
extern "C" void host_backed_close_memory();
extern "C" void host_backed_register_host(const void* begin, size_t bytes);
extern "C" bool host_backed_unregister_host(const void* begin);

namespace {
const bool is_gate_set =
    (emulator::set_memory_gate({host_backed_open_memory, host_backed_close_memory}), true);
}

extern "C" {
cudaError_t cudaHostRegister(void* begin, size_t bytes, unsigned /*flags*/) {
  host_backed_register_host(begin, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* begin) {
  return host_backed_unregister_host(begin) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
const char* cudaGetErrorString(cudaError_t /*error*/) {
  return "an error of the host-backed device";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

// Inline functions of LibTorch's headers name these; nothing of ours calls them.
#define NOT_CALLED(function, ...)                                           \
  cudaError_t function(__VA_ARGS__) {                                       \
    std::fputs("host-backed device: " #function " is not there\n", stderr); \
    std::abort();                                                           \
  }
NOT_CALLED(cudaDeviceSynchronize)
NOT_CALLED(cudaEventCreateWithFlags, cudaEvent_t*, unsigned)
NOT_CALLED(cudaEventDestroy, cudaEvent_t)
NOT_CALLED(cudaEventElapsedTime, float*, cudaEvent_t, cudaEvent_t)
NOT_CALLED(cudaEventQuery, cudaEvent_t)
NOT_CALLED(cudaEventRecord, cudaEvent_t, cudaStream_t)
NOT_CALLED(cudaEventRecordWithFlags, cudaEvent_t, cudaStream_t, unsigned)
NOT_CALLED(cudaEventSynchronize, cudaEvent_t)
NOT_CALLED(cudaStreamWaitEvent, cudaStream_t, cudaEvent_t, unsigned)
NOT_CALLED(cudaStreamGetPriority, cudaStream_t, int*)
#undef NOT_CALLED
}
