#pragma once

#include <cstdint>

/// A caching CPU allocator with statistics. ATen's default allocator has neither, and glibc maps
/// and unmaps each large temporary again (16 ms for 50 MB, 1.6 ms when the block is reused). Freed
/// blocks are kept by size class, and serve requests of up to a fifth less. Before a new block is
/// taken, cached ones are given back to the system, so that live and cached blocks together stay
/// within 17/16 of the most that tensors needed at a time (docs/decisions/0052 has the exceptions).
namespace sftrun::kernels {

struct MemoryStats {
  uint64_t allocated_bytes = 0;  ///< that live tensors asked for, rounded up to size classes
  uint64_t peak_bytes = 0;       ///< largest allocated_bytes since the last reset
};

/// Installs the allocator as LibTorch's CPU allocator for the rest of the process. Idempotent,
/// thread-safe.
void install_cpu_allocator();
MemoryStats cpu_memory_stats();
void reset_cpu_peak();

}  // namespace sftrun::kernels
