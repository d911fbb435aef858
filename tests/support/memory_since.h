#pragma once

#include <cstdint>

#include "sftrun/kernels/memory.h"

namespace sftrun {

/// Bytes of the CPU's allocator beside those that were allocated when the object was made.
class MemorySince {
 public:
  MemorySince() : before_(allocated()) { kernels::reset_cpu_peak(); }
  int64_t held() const { return allocated() - before_; }
  int64_t peak() const {
    return static_cast<int64_t>(kernels::cpu_memory_stats().peak_bytes) - before_;
  }

 private:
  static int64_t allocated() {
    return static_cast<int64_t>(kernels::cpu_memory_stats().allocated_bytes);
  }
  int64_t before_;
};

}  // namespace sftrun
