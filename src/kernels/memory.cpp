#include "sftrun/kernels/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace sftrun::kernels {
namespace {

constexpr size_t kHeaderBytes = 64;          // keeps data cache-line aligned
constexpr size_t kLargestSmall = 64 * 1024;  // glibc is fast up to this size
constexpr size_t kStepsPerDoubling = 8;      // at most 12.5% is lost to rounding
// A cached block serves a request of 4/5 of its size or more: micro-batches of a few tokens less
// use the blocks of those before.
constexpr size_t kLargestUse = 5, kSmallestUse = 4;
// Of what tensors needed at a time, this part more may be held in cached blocks.
constexpr size_t kSpare = 16;

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

/// Gives a block's pages back to the system. free() alone would keep them, where blocks of another
/// size rarely fit.
void discard(void* block, size_t num_bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
             begin = reinterpret_cast<uintptr_t>(block), first = (begin + page - 1) / page * page,
             last = (begin + num_bytes) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  std::free(block);
}

/// In front of every block.
struct Header {
  size_t block_bytes;  ///< of the block, without this header
  size_t used_bytes;   ///< of the request, rounded up; less where a larger block was cached
};
static_assert(sizeof(Header) <= kHeaderBytes);

/// Freed blocks by size, and when one of each size was reused last.
class BlockCache {
 public:
  /// The smallest block that a request of `bytes` may use; nullptr: none.
  void* take(size_t bytes) {
    for (auto at = classes_.lower_bound(bytes);
         at != classes_.end() && at->first * kSmallestUse <= bytes * kLargestUse; ++at) {
      if (at->second.blocks.empty()) continue;
      void* block = at->second.blocks.back();
      at->second.blocks.pop_back();
      at->second.last_use = ++clock_;
      bytes_ -= at->first;
      return block;
    }
    return nullptr;
  }

  void put(void* block, size_t bytes) {
    classes_[bytes].blocks.push_back(block);
    bytes_ += bytes;
  }

  /// Discards blocks until at most `bytes` are left: sizes that were never reused first, then the
  /// one reused longest ago.
  void shrink_to(size_t bytes) {
    while (bytes_ > bytes) {
      const auto oldest = std::min_element(
          classes_.begin(), classes_.end(), [](const auto& left, const auto& right) {
            return std::pair(left.second.blocks.empty(), left.second.last_use) <
                   std::pair(right.second.blocks.empty(), right.second.last_use);
          });
      discard(oldest->second.blocks.back(), oldest->first + kHeaderBytes);
      oldest->second.blocks.pop_back();
      bytes_ -= oldest->first;
    }
  }

 private:
  struct SizeClass {
    std::vector<void*> blocks;
    uint64_t last_use = 0;
  };
  std::map<size_t, SizeClass> classes_;
  size_t bytes_ = 0;  // of all blocks
  uint64_t clock_ = 0;
};

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
  void* take(size_t num_bytes) {
    const size_t bytes = round_up(num_bytes);
    void* block = bytes > kLargestSmall ? take_cached(bytes) : nullptr;
    if (block == nullptr) block = fresh(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "out of memory: cannot allocate ",
                     num_bytes, " bytes");
    auto* header = static_cast<Header*>(block);
    header->used_bytes = bytes;
    in_blocks_ += header->block_bytes;
    const uint64_t now = allocated_.fetch_add(bytes) + bytes;
    raise_to(now, peak_);
    raise_to(now, max_);
    return static_cast<char*>(block) + kHeaderBytes;
  }

  void* take_cached(size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* block = cache_.take(bytes);
    // A new block comes in place of cached ones that other micro-batches left behind: the process
    // holds little more than tensors needed at a time.
    if (block == nullptr) {
      const uint64_t most = std::max<uint64_t>(max_, allocated_ + bytes),
                     held = most + most / kSpare, live = in_blocks_ + bytes;
      cache_.shrink_to(held > live ? held - live : 0);
    }
    return block;
  }

  void* fresh(size_t bytes) {
    void* block = fresh_block(bytes + kHeaderBytes);
    if (block == nullptr) {
      const std::lock_guard lock(mutex_);
      cache_.shrink_to(0);
      block = fresh_block(bytes + kHeaderBytes);
    }
    if (block != nullptr) static_cast<Header*>(block)->block_bytes = bytes;
    return block;
  }

  static void raise_to(uint64_t value, std::atomic<uint64_t>& largest) {
    uint64_t seen = largest.load();
    while (value > seen && !largest.compare_exchange_weak(seen, value)) {
    }
  }

  static void release(void* data);

  void give_back(void* data) {
    void* block = static_cast<char*>(data) - kHeaderBytes;
    const Header header = *static_cast<Header*>(block);
    allocated_ -= header.used_bytes;
    in_blocks_ -= header.block_bytes;
    if (header.block_bytes <= kLargestSmall) {
      std::free(block);
      return;
    }
    const std::lock_guard lock(mutex_);
    try {
      cache_.put(block, header.block_bytes);
    } catch (const std::bad_alloc&) {  // no memory for the list of blocks
      discard(block, header.block_bytes + kHeaderBytes);
    }
  }

  mutable std::mutex mutex_;
  BlockCache cache_;  // under mutex_
  std::atomic<uint64_t> allocated_{0}, peak_{0};
  std::atomic<uint64_t> max_{0};        // like peak_, of the whole process
  std::atomic<uint64_t> in_blocks_{0};  // like allocated_, of whole blocks
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
