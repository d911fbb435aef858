#include "sftrun/core/memory_reserve.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>
#include <utility>

namespace sftrun {
namespace {

/// Small ones, which the allocator keeps for others of its own when they are freed. The system would have large ones, and could use them
/// for the stack of a thread.
struct Block {
  static constexpr size_t kBytes = size_t{64} << 10;
  Block* next;
};

// The process's, as the handler is.
std::atomic<Block*> reserved{nullptr};
std::atomic<int> num_users{0}, num_waits{0};

/// @return whether there was any
bool give_back() {
  Block* block = reserved.exchange(nullptr);
  const bool had_any = block != nullptr;
  while (block != nullptr) {
    void* const freed = block;
    block = block->next;
    std::free(freed);
  }
  return had_any;
}

/// Called where an allocation fails, which is tried again after a return.
void on_failed_allocation() {
  constexpr int kMaxWaits = 500;
  constexpr auto kWait = std::chrono::milliseconds(10);
  // Containers destroy what they have copied in a handler of their own.
  if (std::uncaught_exceptions() == 0 && std::current_exception() == nullptr) {
    num_waits = 0;
    throw std::bad_alloc();
  }
  if (give_back()) return;
  if (num_waits++ >= kMaxWaits) throw std::bad_alloc();
  std::this_thread::sleep_for(kWait);
}

}  // namespace

MemoryReserve::MemoryReserve(size_t bytes) : bytes_(bytes) {
  refill();
  ++num_users;
  std::set_new_handler(on_failed_allocation);
}

MemoryReserve::~MemoryReserve() {
  std::free(pin_);
  if (--num_users > 0) return;
  std::set_new_handler(nullptr);
  give_back();
}

void MemoryReserve::refill() noexcept {
  if (is_full()) return;
  Block* all = nullptr;
  for (size_t taken = 0; taken < bytes_; taken += Block::kBytes) {
    void* const block = std::malloc(Block::kBytes);
    if (block == nullptr) break;
    all = new (block) Block{all};
  }
  std::free(std::exchange(pin_, std::malloc(1)));
  reserved = all;
}

bool MemoryReserve::is_full() noexcept {
  return reserved != nullptr;
}

}  // namespace sftrun
