// libcudart: device memory, page-locked host memory, copies and memsets.
#include <cuda_runtime_api.h>

#include "cudart_error.h"
#include "entry.h"

namespace stand_in {
namespace {

enum class Waits { kAlways, kForPageable };

struct Copy {
  void* to;
  const void* from;
  size_t size;
  cudaMemcpyKind kind;
};

const char* direction(bool to_device, bool from_device) {
  if (to_device) return from_device ? "D2D" : "H2D";
  return from_device ? "D2H" : "H2H";
}

const char* name_of(cudaMemcpyKind kind) {
  constexpr const char* kNames[] = {"H2H", "H2D", "D2H", "D2D", "default"};
  require(kind >= 0 && kind <= cudaMemcpyDefault, "copy of kind ", static_cast<int>(kind));
  return kNames[kind];
}

/// The direction by the pointers, which the caller's word for it must agree with.
const char* checked_direction(const Copy& copy) {
  const char* by_pointers = direction(is_device_address(copy.to), is_device_address(copy.from));
  const char* by_kind = name_of(copy.kind);
  if (copy.kind != cudaMemcpyDefault && std::string(by_pointers) != by_kind)
    fail(text("copy of kind ", by_kind, " whose pointers are ", by_pointers, ": ", copy.to, " <- ",
              copy.from));
  return by_pointers;
}

/// Of the side that is on the host; none between devices.
const char* host_side(const Copy& copy) {
  if (!is_device_address(copy.from)) return stand_in::name_of(host_kind(copy.from));
  if (!is_device_address(copy.to)) return stand_in::name_of(host_kind(copy.to));
  return "none";
}

/// @return whether the host waits for the stream
bool log_copy(const Copy& copy, const Stream& stream, bool blocking, bool captured) {
  const std::string direction = checked_direction(copy), host = host_side(copy);
  // Of pageable memory the runtime makes a copy of its own, or waits until there is one.
  const bool waits = !captured && (blocking || (direction == "D2H" && host == "pageable"));
  Event(captured ? "captured_copy" : "copy")
      .with("kind", direction)
      .with("bytes", copy.size)
      .with("blocking", blocking)
      .with("waits", waits)
      .with("host", host)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  return waits;
}

cudaError_t do_copy(const Copy& copy, cudaStream_t handle, bool blocking) {
  auto lock = lock_tables();
  const char* what = blocking ? "cudaMemcpy" : "cudaMemcpyAsync";
  if (blocking) {
    if (const auto error = forbidden_in_capture(what)) return answer(error);
  }
  if (copy.size == 0) return cudaSuccess;
  Stream& stream = stream_of(handle, what);
  require_chosen_device(what);
  const auto run = [copy, what] { copy_bytes(copy.to, copy.from, copy.size, what); };
  const bool captured = recorded(stream, {"copy", run});
  const bool waits = log_copy(copy, stream, blocking, captured);
  if (waits && hangs(stream.hang)) {
    const HangPointer hang = stream.hang;
    lock.unlock();
    wait_until_over(hang);
    lock.lock();
  }
  if (!captured) run();
  return cudaSuccess;
}

cudaError_t do_fill(void* to, int value, size_t size, cudaStream_t handle, const char* what) {
  const auto lock = lock_tables();
  if (size == 0) return cudaSuccess;
  require_live(to, size, what);
  Stream& stream = stream_of(handle, what);
  require_chosen_device(what);
  const auto run = [=] { fill_bytes(to, value, size, what); };
  const bool captured = recorded(stream, {"memset", run});
  Event(captured ? "captured_memset" : "memset")
      .with("bytes", size)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  if (!captured) run();
  return cudaSuccess;
}

cudaMemoryType type_of(const void* address) {
  if (is_device_address(address)) return cudaMemoryTypeDevice;
  return host_kind(address) == HostKind::kPageable ? cudaMemoryTypeUnregistered
                                                   : cudaMemoryTypeHost;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

// ---- Device memory.
STAND_IN_API cudaError_t cudaMalloc(void** address, size_t size) {
  const auto lock = lock_tables();
  *address = nullptr;
  if (const auto error = forbidden_in_capture("cudaMalloc")) return answer(error);
  require_chosen_device("cudaMalloc");
  *address = allocate(current_device(), size);
  Event("malloc")
      .with("bytes", size)
      .with("device", current_device())
      .with("failed", *address == nullptr);
  return answer(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}
STAND_IN_API cudaError_t cudaFree(void* address) {
  const auto lock = lock_tables();
  if (address == nullptr) return cudaSuccess;
  if (const auto error = forbidden_in_capture("cudaFree")) return answer(error);
  deallocate(address, "cudaFree");
  Event("free").with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const auto lock = lock_tables();
  *free = free_bytes(current_device());
  *total = settings().device_bytes;
  return cudaSuccess;
}

// ---- Host memory.
STAND_IN_API cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  const auto lock = lock_tables();
  if (const auto error = forbidden_in_capture("cudaHostAlloc")) return answer(error);
  *address = allocate_pinned(size);
  Event("host_malloc").with("bytes", size).with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaMallocHost(void** address, size_t size) {
  return cudaHostAlloc(address, size, 0);
}
STAND_IN_API cudaError_t cudaFreeHost(void* address) {
  const auto lock = lock_tables();
  if (address == nullptr) return cudaSuccess;
  if (const auto error = forbidden_in_capture("cudaFreeHost")) return answer(error);
  free_pinned(address);
  Event("host_free").with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  const auto lock = lock_tables();
  register_host(address, size);
  Event("host_register").with("bytes", size).with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaHostUnregister(void* address) {
  const auto lock = lock_tables();
  unregister_host(address);
  Event("host_unregister").with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                  const void* address) {
  const auto lock = lock_tables();
  *attributes = {};
  attributes->type = type_of(address);
  attributes->device = device_of(address).value_or(current_device());
  void* same = const_cast<void*>(address);
  if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = same;
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = same;
  return cudaSuccess;
}

// ---- Copies and memsets.
STAND_IN_API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return do_copy({to, from, size, kind}, nullptr, true);
}
STAND_IN_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size,
                                         cudaMemcpyKind kind, cudaStream_t stream) {
  return do_copy({to, from, size, kind}, stream, false);
}
STAND_IN_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                             cudaStream_t stream) {
  return do_copy({to, from, size, cudaMemcpyDeviceToDevice}, stream, false);
}
STAND_IN_API cudaError_t cudaMemset(void* to, int value, size_t size) {
  return do_fill(to, value, size, nullptr, "cudaMemset");
}
STAND_IN_API cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return do_fill(to, value, size, stream, "cudaMemsetAsync");
}
