#include "sftrun/core/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace sftrun {
namespace {

// The process's, as the handler is.
std::atomic<void*> reserved{nullptr};
std::atomic<int> num_users{0};

void give_back() {
  std::free(reserved.exchange(nullptr));
  throw std::bad_alloc();
}

}  // namespace

MemoryReserve::MemoryReserve(size_t bytes) : bytes_(bytes) {
  refill();
  ++num_users;
  std::set_new_handler(give_back);
}

MemoryReserve::~MemoryReserve() {
  if (--num_users > 0) return;
  std::set_new_handler(nullptr);
  std::free(reserved.exchange(nullptr));
}

void MemoryReserve::refill() noexcept {
  if (is_full()) return;
  void* taken = std::malloc(bytes_);
  void* none = nullptr;
  if (!reserved.compare_exchange_strong(none, taken)) std::free(taken);
}

bool MemoryReserve::is_full() const noexcept {
  return reserved != nullptr;
}

}  // namespace sftrun
