#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Memory that a process takes where it computes: on the card, or on the CPU that has none.
namespace sftrun::engine {

/// What metrics, run.json and `bench` call peak memory: on CUDA the most that LibTorch's allocator
/// took from the card, what it keeps for reuse included; on a CPU the process' largest resident
/// size.
uint64_t peak_memory_bytes(at::Device device);

/// Tensors on the device.
struct TensorMemory {
  uint64_t allocated_bytes = 0, peak_bytes = 0;  ///< live now; the most since the reset
};
TensorMemory tensor_memory(at::Device device);
void reset_tensor_peak(at::Device device);

}  // namespace sftrun::engine
