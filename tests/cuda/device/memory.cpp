#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace host_backed {
namespace {

// Addresses are never used twice: what was released stays closed.
constexpr size_t kAddresses = size_t{1} << 40, kPage = 4096;
constexpr unsigned char kFill = 0xFF;

size_t setting(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

size_t rounded_up(size_t n, size_t step) {
  return (n + step - 1) / step * step;
}

struct Block {
  size_t bytes = 0, page_bytes = 0;
  char* begin = nullptr;
  int device = 0;
  bool is_released = false, is_kept = false;
};

using Blocks = std::map<char*, Block>;

/// The block of an address; blocks.end() where there is none.
Blocks::iterator find(Blocks& blocks, const void* address) {
  auto* const at = static_cast<char*>(const_cast<void*>(address));
  auto found = blocks.upper_bound(at);
  if (found == blocks.begin()) return blocks.end();
  --found;
  return at < found->first + found->second.page_bytes ? found : blocks.end();
}

struct Arena {
  char *device = nullptr, *host = nullptr;
  size_t used = 0;
  const size_t limit = setting("SFTRUN_HOST_BACKED_MIB", 8192) << 20;
  // 512 as LibTorch's allocator; 16 finds overruns of a few bytes.
  const size_t alignment = setting("SFTRUN_HOST_BACKED_ALIGN", 512);
  Blocks blocks;  // by the first page
  std::map<const char*, size_t> registered;
  std::vector<MemoryUse> use = std::vector<MemoryUse>(64);
  std::recursive_mutex mutex;
  int kernels_inside = 0;

  Arena() {
    const int file = memfd_create("host_backed", 0);
    if (file < 0 || ftruncate(file, kAddresses) != 0) fail("no memory file");
    device = map(file, PROT_NONE);
    host = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }
  static char* map(int file, int protection) {
    void* at = mmap(nullptr, kAddresses, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) fail("no addresses for the card's memory");
    return static_cast<char*>(at);
  }
};

// Never destroyed: tensors of static lifetime outlive main.
Arena& arena() {
  static auto* instance = new Arena;
  return *instance;
}

/// The bytes around a block on its own pages are as they were filled.
void require_untouched_margins(char* first, const Block& block) {
  const auto is_written = [](const char* at) {
    return *static_cast<const unsigned char*>(host_view(at)) != kFill;
  };
  const char *begin = block.begin, *end = begin + block.bytes;
  for (const char* at = first; at < first + block.page_bytes; ++at) {
    if (at == begin) at = end;
    if (at == first + block.page_bytes) return;
    if (is_written(at)) fail("byte %td of a block of %zu was written", at - begin, block.bytes);
  }
}

void give_back(Blocks::iterator at) {
  const auto& [first, block] = *at;
  mprotect(first, block.page_bytes, PROT_NONE);
  madvise(host_view(first), block.page_bytes, MADV_REMOVE);
  MemoryUse& use = arena().use[static_cast<size_t>(block.device)];
  use.live_bytes -= static_cast<int64_t>(block.page_bytes);
  --use.live_blocks;
  arena().blocks.erase(at);
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("host-backed device: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

bool is_device(const void* address) {
  const auto* at = static_cast<const char*>(address);
  return at >= arena().device && at < arena().device + kAddresses;
}

void* host_view(const void* device_address) {
  return arena().host + (static_cast<const char*>(device_address) - arena().device);
}

void* allocate(size_t bytes, int device) {
  if (bytes == 0) return nullptr;
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  MemoryUse& use = a.use[static_cast<size_t>(device)];
  const size_t whole = rounded_up(bytes, a.alignment), page_bytes = rounded_up(whole, kPage);
  if (static_cast<size_t>(use.live_bytes) + page_bytes > a.limit) return nullptr;
  if (a.used + page_bytes + kPage > kAddresses) fail("out of addresses");
  char *first = a.device + a.used, *begin = first + (page_bytes - whole);
  a.used += page_bytes + kPage;
  a.blocks[first] = {bytes, page_bytes, begin, device};
  use.live_bytes += static_cast<int64_t>(page_bytes);
  use.peak_bytes = std::max(use.peak_bytes, use.live_bytes);
  ++use.live_blocks;
  ++use.allocations;
  if (a.kernels_inside > 0) mprotect(first, page_bytes, PROT_READ | PROT_WRITE);
  std::memset(host_view(first), kFill, page_bytes);
  return begin;
}

void release(void* block) {
  if (block == nullptr) return;
  Arena& a = arena();
  const std::lock_guard lock(a.mutex);
  const auto at = find(a.blocks, block);
  if (at == a.blocks.end() || at->second.begin != block || at->second.is_released)
    fail("a block is released twice");
  require_untouched_margins(at->first, at->second);
  at->second.is_released = true;
  if (!at->second.is_kept) give_back(at);
}

void keep(void* block) {
  const std::lock_guard lock(arena().mutex);
  find(arena().blocks, block)->second.is_kept = true;
}

void let_go(void* block) {
  const std::lock_guard lock(arena().mutex);
  const auto at = find(arena().blocks, block);
  require_untouched_margins(at->first, at->second);
  at->second.is_kept = false;
  if (at->second.is_released) give_back(at);
}

bool is_in_use(const void* block) {
  const std::lock_guard lock(arena().mutex);
  const auto at = find(arena().blocks, block);
  return at != arena().blocks.end() && !at->second.is_released;
}

bool is_there(const void* address) {
  const std::lock_guard lock(arena().mutex);
  return find(arena().blocks, address) != arena().blocks.end();
}

void fill(void* block) {
  const std::lock_guard lock(arena().mutex);
  const auto at = find(arena().blocks, block);
  if (at != arena().blocks.end()) std::memset(host_view(block), kFill, at->second.bytes);
}

MemoryUse memory_use(int device) {
  const std::lock_guard lock(arena().mutex);
  return arena().use[static_cast<size_t>(device)];
}

void reset_peak(int device) {
  const std::lock_guard lock(arena().mutex);
  MemoryUse& use = arena().use[static_cast<size_t>(device)];
  use.peak_bytes = use.live_bytes;
}

void register_host(const void* begin, size_t bytes, int device) {
  // Each of several ranks has one card; who registers elsewhere makes a context there. A single rank
  // may have all cards (parallel.device_map).
  const size_t expected = setting("LOCAL_WORLD_SIZE", 1) == 1
                              ? static_cast<size_t>(device)
                              : setting("LOCAL_RANK", 0) % static_cast<size_t>(device_count());
  if (expected != static_cast<size_t>(device))
    fail("host memory is registered on card %d by local rank %zu", device, expected);
  const std::lock_guard lock(arena().mutex);
  arena().registered[static_cast<const char*>(begin)] = bytes;
}

bool unregister_host(const void* begin) {
  const std::lock_guard lock(arena().mutex);
  return arena().registered.erase(static_cast<const char*>(begin)) > 0;
}

bool is_registered(const void* address) {
  const auto* at = static_cast<const char*>(address);
  const std::lock_guard lock(arena().mutex);
  auto range = arena().registered.upper_bound(at);
  return range != arena().registered.begin() && (--range, at < range->first + range->second);
}

size_t registered_ranges() {
  const std::lock_guard lock(arena().mutex);
  return arena().registered.size();
}

void open_memory() {
  Arena& a = arena();
  a.mutex.lock();
  if (a.kernels_inside++ > 0) return;
  for (const auto& [first, block] : a.blocks)
    if (!block.is_released) mprotect(first, block.page_bytes, PROT_READ | PROT_WRITE);
}

void open_block(void* block) {
  const auto at = find(arena().blocks, block);
  mprotect(at->first, at->second.page_bytes, PROT_READ | PROT_WRITE);
}

void close_memory() {
  Arena& a = arena();
  if (--a.kernels_inside == 0) mprotect(a.device, a.used, PROT_NONE);
  a.mutex.unlock();
}

int device_count() {
  static const auto count = static_cast<int>(setting("SFTRUN_HOST_BACKED_DEVICES", 1));
  return count;
}

int compute_capability() {
  static const auto sm = static_cast<int>(setting("SFTRUN_HOST_BACKED_SM", 90));
  return sm;
}

}  // namespace host_backed
