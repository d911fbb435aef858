#include <sys/mman.h>

#include <map>

#include "memory.h"
#include "report.h"

namespace stand_in {

OpenMemory open_device_memory();  // memory.cpp

namespace {

struct Range {
  size_t size = 0;
  HostKind kind = HostKind::kPageable;
};

/// Page-locked host memory, by address.
std::map<char*, Range>& ranges() {
  static auto* const result = new std::map<char*, Range>;  // outlives every destructor
  return *result;
}

auto range_of(const void* address) {
  char* wanted = static_cast<char*>(const_cast<void*>(address));
  auto found = ranges().upper_bound(wanted);
  if (found == ranges().begin()) return ranges().end();
  --found;
  return wanted < found->first + found->second.size ? found : ranges().end();
}

}  // namespace

const char* name_of(HostKind kind) {
  switch (kind) {
    case HostKind::kPinned:
      return "pinned";
    case HostKind::kRegistered:
      return "registered";
    default:
      return "pageable";
  }
}

HostKind host_kind(const void* address) {
  const auto found = range_of(address);
  return found == ranges().end() ? HostKind::kPageable : found->second.kind;
}

void* allocate_pinned(size_t size) {
  void* made = mmap(nullptr, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(made != MAP_FAILED, "no memory for ", size, " bytes of pinned memory");
  ranges()[static_cast<char*>(made)] = {size, HostKind::kPinned};
  return made;
}

void free_pinned(void* address) {
  const auto found = ranges().find(static_cast<char*>(address));
  require(found != ranges().end() && found->second.kind == HostKind::kPinned, "cudaFreeHost of ",
          address, ", which is not pinned memory");
  munmap(address, found->second.size + 1);
  ranges().erase(found);
}

void register_host(void* address, size_t size) {
  char* first = static_cast<char*>(address);
  const auto next = ranges().lower_bound(first);
  require(range_of(address) == ranges().end() &&
              (next == ranges().end() || next->first >= first + size),
          "cudaHostRegister of ", address, ", part of which is registered");
  ranges()[first] = {size, HostKind::kRegistered};
}

void unregister_host(void* address) {
  const auto found = ranges().find(static_cast<char*>(address));
  require(found != ranges().end() && found->second.kind == HostKind::kRegistered,
          "cudaHostUnregister of ", address, ", which is not registered");
  ranges().erase(found);
}

OpenMemory open_memory() {
  OpenMemory open = open_device_memory();
  for (const auto& [address, range] : ranges())
    ++(range.kind == HostKind::kPinned ? open.pinned : open.registered);
  return open;
}

}  // namespace stand_in
