#pragma once

#include <cstddef>

namespace sftrun {

/// Memory for what is done while an exception passes or is handled because there is none: destructors that need some, as those of JSON
/// values do, would end the process with an exception of their own. Such an allocation gets the reserve or, if that is used up, waits up
/// to some seconds for what other threads free. All others fail at once. Objects of one process share the reserve.
class MemoryReserve {
 public:
  explicit MemoryReserve(size_t bytes);
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  /// Takes it again, if it was given back. Of one thread: the allocator keeps the memory of threads apart.
  void refill() noexcept;
  static bool is_full() noexcept;

 private:
  size_t bytes_;
  /// A block behind the reserve: the system takes back what is free at the end of the allocator's memory.
  void* pin_ = nullptr;
};

}  // namespace sftrun
