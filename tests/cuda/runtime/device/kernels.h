#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>

/// The kernels that libraries register, and launches of them, which are checked and counted.
namespace stand_in {

void register_kernel(const void* kernel, const char* mangled, int max_threads);
/// The opt-in for more than 48 KiB of shared memory.
void allow_shared_bytes(const void* kernel, int bytes);
int allowed_shared_bytes(const void* kernel);

struct Launch {
  const void* kernel = nullptr;
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
void launch(const Launch& what);

}  // namespace stand_in
