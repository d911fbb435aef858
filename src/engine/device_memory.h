#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Memory use of this process: on the GPU, or on the CPU if there is none.
namespace sftrun::engine {

/// Peak memory as in metrics, run.json and `bench`. CUDA: the most memory that LibTorch's allocator
/// reserved; CPU: the largest resident size of the process.
uint64_t peak_memory_bytes(at::Device device);

/// Memory that a process can use: of the smallest GPU of the machine, or its share of the host's
/// memory. 0: the driver does not say.   @param local_world_size processes of this machine
uint64_t device_memory_bytes(at::Device device, int local_world_size);

/// Tensors on the device.
struct TensorMemory {
  uint64_t allocated_bytes = 0, peak_bytes = 0;  ///< live now; the most since the reset
};
TensorMemory tensor_memory(at::Device device);
void reset_tensor_peak(at::Device device);

}  // namespace sftrun::engine
