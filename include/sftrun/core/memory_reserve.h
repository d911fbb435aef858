#pragma once

#include <cstddef>

namespace sftrun {

/// Memory for what is left to do where memory has run out: to destroy what was begun, and to answer. The allocation that fails first gives
/// it back to the system, and fails nevertheless. Objects of one process share it.
class MemoryReserve {
 public:
  explicit MemoryReserve(size_t bytes);
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  /// Takes it again, if it was given back. Thread-safe.
  void refill() noexcept;
  bool is_full() const noexcept;

 private:
  size_t bytes_;
};

}  // namespace sftrun
