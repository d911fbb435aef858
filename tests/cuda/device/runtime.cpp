// CUDA's runtime as far as src/cuda and inline functions of LibTorch's headers call it, hidden
// inside the library with the emulated kernels; the gate that opens the card's memory to them; and
// the recorder of their launches on captured streams.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "capture.h"
#include "emulator.h"

extern "C" void host_backed_open_memory();
extern "C" void host_backed_close_memory();
extern "C" void host_backed_register_host(const void* begin, size_t bytes);
extern "C" bool host_backed_unregister_host(const void* begin);

namespace {
const bool is_gate_set =
    (emulator::set_memory_gate({host_backed_open_memory, host_backed_close_memory}), true);

/// As CUDAStream::stream() makes them.
c10::StreamId id_of(void* stream) {
  return reinterpret_cast<c10::StreamId>(stream);
}
const bool is_recorder_set =
    (emulator::set_launch_recorder(
         {[](void* stream) { return host_backed::is_captured(id_of(stream)); },
          [](void* stream, std::function<void()> launch) {
            host_backed::record(id_of(stream), std::move(launch));
          }}),
     true);
}  // namespace

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
NOT_CALLED(cudaStreamIsCapturing, cudaStream_t, cudaStreamCaptureStatus*)
NOT_CALLED(cudaThreadExchangeStreamCaptureMode, cudaStreamCaptureMode*)
NOT_CALLED(cudaMemGetInfo, size_t*, size_t*)
#undef NOT_CALLED
}
