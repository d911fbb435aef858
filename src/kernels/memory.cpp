#include "sftrun/kernels/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace sftrun::kernels {
namespace {

constexpr size_t kHeaderBytes = 64;  // keeps data cache-line aligned; holds the block's size
constexpr size_t kLargestSmall = 64 * 1024;  // glibc is fast up to this size
constexpr size_t kStepsPerDoubling = 8;      // at most 12.5% is lost to rounding

size_t round_up(size_t num_bytes) {
  if (num_bytes <= kLargestSmall) return (num_bytes + 63) & ~size_t{63};
  const size_t step = std::bit_floor(num_bytes) / kStepsPerDoubling;
  return (num_bytes + step - 1) / step * step;
}

/// Pages that lie wholly in a large block may be huge: weights that are read from memory in every step
/// are read about a tenth faster.
void* fresh_block(size_t num_bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  void* block = std::aligned_alloc(64, num_bytes);
  if (block == nullptr) return nullptr;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(block) % kHugePage) % kHugePage;
  if (num_bytes < before + kHugePage) return block;
  const size_t whole = (num_bytes - before) / kHugePage * kHugePage;
  ::madvise(static_cast<char*>(block) + before, whole, MADV_HUGEPAGE);  // only advice
  return block;
}

class CachingCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = num_bytes == 0 ? nullptr : take(num_bytes);
    return {data, data, &CachingCpuAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CachingCpuAllocator::release; }
  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }

  MemoryStats stats() const { return {allocated_.load(), peak_.load()}; }
  void reset_peak() { peak_.store(allocated_.load()); }

 private:
  struct SizeClass {
    size_t bytes;
    std::vector<void*> blocks;
  };

  void* take(size_t num_bytes) {
    const size_t bytes = round_up(num_bytes);
    void* block = bytes > kLargestSmall ? take_cached(bytes) : nullptr;
    if (block == nullptr) block = fresh_block(bytes + kHeaderBytes);
    if (block == nullptr) {  // memory may be cached in another size class
      trim();
      block = fresh_block(bytes + kHeaderBytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "out of memory: cannot allocate ",
                     num_bytes, " bytes");
    *static_cast<size_t*>(block) = bytes;
    const uint64_t now = allocated_.fetch_add(bytes) + bytes;
    uint64_t seen = peak_.load();
    while (now > seen && !peak_.compare_exchange_weak(seen, now)) {
    }
    return static_cast<char*>(block) + kHeaderBytes;
  }

  void* take_cached(size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (SizeClass& size_class : free_) {
      if (size_class.bytes != bytes || size_class.blocks.empty()) continue;
      void* block = size_class.blocks.back();
      size_class.blocks.pop_back();
      return block;
    }
    return nullptr;
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    for (SizeClass& size_class : free_) {
      for (void* block : size_class.blocks) std::free(block);
      size_class.blocks.clear();
    }
  }

  static void release(void* data);

  void give_back(void* data) {
    void* block = static_cast<char*>(data) - kHeaderBytes;
    const size_t bytes = *static_cast<size_t*>(block);
    allocated_ -= bytes;
    if (bytes <= kLargestSmall) {
      std::free(block);
      return;
    }
    const std::lock_guard lock(mutex_);
    for (SizeClass& size_class : free_) {
      if (size_class.bytes == bytes) {
        size_class.blocks.push_back(block);
        return;
      }
    }
    free_.push_back({bytes, {block}});
  }

  mutable std::mutex mutex_;
  std::vector<SizeClass> free_;  // a few dozen sizes: a linear scan is cheaper than a map
  std::atomic<uint64_t> allocated_{0}, peak_{0};
};

// Never destroyed: tensors of static lifetime may outlive main.
CachingCpuAllocator& allocator() {
  static auto* instance = new CachingCpuAllocator;
  return *instance;
}

void CachingCpuAllocator::release(void* data) {
  if (data != nullptr) allocator().give_back(data);
}

}  // namespace

void install_cpu_allocator() {
  c10::SetCPUAllocator(&allocator(), /*priority=*/1);
}
MemoryStats cpu_memory_stats() {
  return allocator().stats();
}
void reset_cpu_peak() {
  allocator().reset_peak();
}

}  // namespace sftrun::kernels
