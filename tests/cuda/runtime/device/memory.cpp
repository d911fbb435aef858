#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

constexpr size_t kAddresses = size_t{16} << 40;

/// Device addresses with bytes behind them.
struct Block {
  size_t size = 0, offset = 0;
  std::shared_ptr<Bytes> bytes;
  bool accessible = true;
};

struct Tables {
  char* first = nullptr;
  char* next = nullptr;
  std::vector<size_t> used;          // bytes of each device
  std::map<char*, Block> blocks;     // by address
  std::map<char*, size_t> reserved;  // of the driver's virtual memory
};

char* reserve_range() {
  void* range =
      mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(range != MAP_FAILED, "no addresses for device memory");
  const auto number = reinterpret_cast<uintptr_t>(range);
  return reinterpret_cast<char*>((number + kGranularity - 1) / kGranularity * kGranularity);
}

Tables& tables() {
  static Tables* const result = [] {  // outlives every destructor
    auto* made = new Tables;
    made->first = made->next = reserve_range();
    made->used.resize(static_cast<size_t>(std::max(settings().devices, 1)));
    return made;
  }();
  return *result;
}

size_t rounded(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// The block that holds an address; the end if none does.
auto block_of(const void* address) {
  auto& blocks = tables().blocks;
  char* wanted = static_cast<char*>(const_cast<void*>(address));
  auto found = blocks.upper_bound(wanted);
  if (found == blocks.begin()) return blocks.end();
  --found;
  return wanted < found->first + found->second.size ? found : blocks.end();
}

struct Piece {
  char* data;
  size_t size;
};

/// Where the bytes of an address are for the host, and how many of them lie in a row.
Piece piece_at(const void* address, size_t size, const std::string& what) {
  if (!is_device_address(address)) return {static_cast<char*>(const_cast<void*>(address)), size};
  const auto found = block_of(address);
  require(found != tables().blocks.end(), what, ": ", address,
          " is device memory that was freed or never allocated, or beyond an allocation");
  const Block& block = found->second;
  require(block.accessible, what, ": ", address, " is mapped without access (cuMemSetAccess)");
  const size_t inside = static_cast<size_t>(static_cast<const char*>(address) - found->first);
  return {block.bytes->data() + block.offset + inside, std::min(size, block.size - inside)};
}

}  // namespace

Bytes::Bytes(int device, size_t size) : size_(size), device_(device) {
  void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(made != MAP_FAILED, "the host has no memory for ", size, " bytes of device memory");
  data_ = static_cast<char*>(made);
  tables().used[static_cast<size_t>(device)] += size;
}

Bytes::~Bytes() {
  tables().used[static_cast<size_t>(device_)] -= size_;
  munmap(data_, size_);
}

std::shared_ptr<Bytes> take_bytes(int device, size_t size) {
  if (size > free_bytes(device)) return nullptr;
  return std::make_shared<Bytes>(device, size);
}

size_t free_bytes(int device) {
  return settings().device_bytes - tables().used[static_cast<size_t>(device)];
}

bool is_device_address(const void* address) {
  const char* first = tables().first;
  return address >= first && address < first + kAddresses - kGranularity;
}

char* reserve_addresses(size_t size) {
  Tables& all = tables();
  char* result = all.next;
  all.next += rounded(size, kGranularity) + kGranularity;  // and a gap that belongs to nobody
  require(all.next < all.first + kAddresses - kGranularity, "device addresses are used up");
  all.reserved[result] = size;
  return result;
}

void release_addresses(const void* address, size_t size) {
  auto& reserved = tables().reserved;
  const auto found = reserved.find(static_cast<char*>(const_cast<void*>(address)));
  require(found != reserved.end() && found->second == size, "cuMemAddressFree of ", address,
          ", which is not reserved with this size");
  const auto block = tables().blocks.lower_bound(found->first);
  require(block == tables().blocks.end() || block->first >= found->first + size,
          "cuMemAddressFree of ", address, ", part of which is mapped");
  reserved.erase(found);
}

void map_bytes(char* address, size_t size, size_t offset, std::shared_ptr<Bytes> bytes) {
  Tables& all = tables();
  auto range = all.reserved.upper_bound(address);
  require(range != all.reserved.begin(), "cuMemMap at ", address, ", which is not reserved");
  --range;
  require(address + size <= range->first + range->second, "cuMemMap beyond what is reserved");
  require(offset + size <= bytes->size(), "cuMemMap beyond the handle's bytes");
  const auto next = all.blocks.lower_bound(address);
  require(block_of(address) == all.blocks.end() &&
              (next == all.blocks.end() || next->first >= address + size),
          "cuMemMap over what is mapped");
  all.blocks[address] = {size, offset, std::move(bytes), false};
}

void unmap_bytes(char* address, size_t size) {
  auto& blocks = tables().blocks;
  for (char* at = address; at < address + size;) {
    const auto found = blocks.find(at);
    require(found != blocks.end(), "cuMemUnmap of ", static_cast<void*>(at), ", not mapped");
    at += found->second.size;
    blocks.erase(found);
  }
}

void allow_access(char* address, size_t size) {
  for (char* at = address; at < address + size;) {
    const auto found = block_of(at);
    require(found != tables().blocks.end(), "cuMemSetAccess of ", static_cast<void*>(at),
            ", not mapped");
    found->second.accessible = true;
    at = found->first + found->second.size;
  }
}

std::optional<int> device_of(const void* address) {
  const auto found = block_of(address);
  if (found == tables().blocks.end()) return std::nullopt;
  return found->second.bytes->device();
}

std::shared_ptr<Bytes> bytes_at(const void* address) {
  const auto found = block_of(address);
  return found == tables().blocks.end() ? nullptr : found->second.bytes;
}

void* allocate(int device, size_t size) {
  size = rounded(std::max<size_t>(size, 1), 512);
  auto bytes = take_bytes(device, size);
  if (!bytes) return nullptr;
  char* address = reserve_addresses(size);
  tables().reserved.erase(address);  // is an allocation, which nothing can be mapped into
  tables().blocks[address] = {size, 0, std::move(bytes), true};
  return address;
}

void deallocate(void* address, const char* what) {
  auto& blocks = tables().blocks;
  const auto found = blocks.find(static_cast<char*>(address));
  require(found != blocks.end(), what, " of ", address, ", which is not an allocation");
  blocks.erase(found);
}

void require_live(const void* address, size_t size, const std::string& what) {
  require(is_device_address(address), what, ": ", address, " is not device memory");
  for (size_t done = 0; done < size;)
    done += piece_at(static_cast<const char*>(address) + done, size - done, what).size;
}

void copy_bytes(void* to, const void* from, size_t size, const std::string& what) {
  for (size_t done = 0; done < size;) {
    const Piece target = piece_at(static_cast<char*>(to) + done, size - done, what);
    const Piece source = piece_at(static_cast<const char*>(from) + done, target.size, what);
    std::memmove(target.data, source.data, source.size);
    done += source.size;
  }
}

void fill_bytes(void* to, int value, size_t size, const std::string& what) {
  for (size_t done = 0; done < size;) {
    const Piece target = piece_at(static_cast<char*>(to) + done, size - done, what);
    std::memset(target.data, value, target.size);
    done += target.size;
  }
}

OpenMemory open_device_memory() {
  OpenMemory open;
  for (const auto& [address, block] : tables().blocks) {
    ++open.device_blocks;
    open.device_bytes += block.size;
  }
  return open;
}

}  // namespace stand_in
