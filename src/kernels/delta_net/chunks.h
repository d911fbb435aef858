#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "parallel.h"

namespace sftrun::kernels {

/// Calls body(first, count) for parts of [0, total). CPU: parts of `cpu_part` in parallel, sized
/// for the cache; the result does not depend on the number of threads. CUDA: parts of `cuda_part`
/// one after the other, to limit memory.
template <typename Body>
void for_parts(at::Device device, int64_t total, int64_t cpu_part, int64_t cuda_part,
               const Body& body) {
  if (device.is_cpu()) {
    parallel_for(0, (total + cpu_part - 1) / cpu_part, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        body(part * cpu_part, std::min(cpu_part, total - part * cpu_part));
    });
    return;
  }
  for (int64_t first = 0; first < total; first += cuda_part)
    body(first, std::min(cuda_part, total - first));
}

}  // namespace sftrun::kernels
