#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

/// Device memory that the host cannot touch, and the host memory that the runtime knows.
///
/// Device addresses lie in one range that is reserved without access and never used twice: a host
/// that reads through one is stopped by the processor, and what was freed is never mistaken for
/// what came after. The bytes lie elsewhere, in mappings that copies and memsets go to.
namespace stand_in {

/// Bytes of a device, without an address of their own.
class Bytes {
 public:
  Bytes(int device, size_t size);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int device() const { return device_; }

 private:
  char* data_;
  size_t size_;
  int device_;
};

constexpr size_t kGranularity = size_t{2} << 20;  // of cuMemCreate, as on real cards

// ---- Bytes of a device.
/// Null if the device has not so much left.
std::shared_ptr<Bytes> take_bytes(int device, size_t size);
size_t free_bytes(int device);

// ---- Addresses.
bool is_device_address(const void* address);
char* reserve_addresses(size_t size);
void release_addresses(const void* address, size_t size);
void map_bytes(char* address, size_t size, size_t offset, std::shared_ptr<Bytes> bytes);
void unmap_bytes(char* address, size_t size);
void allow_access(char* address, size_t size);
/// Of live memory; none otherwise.
std::optional<int> device_of(const void* address);
std::shared_ptr<Bytes> bytes_at(const void* address);

/// cudaMalloc and cudaFree. Null when the device is full.
void* allocate(int device, size_t size);
void deallocate(void* address, const char* what);

/// Stops the program if these are not live device addresses throughout.
void require_live(const void* address, size_t size, const std::string& what);

// ---- Bytes from and to any address.
void copy_bytes(void* to, const void* from, size_t size, const std::string& what);
void fill_bytes(void* to, int value, size_t size, const std::string& what);

// ---- Host memory.
enum class HostKind { kPageable, kPinned, kRegistered };
const char* name_of(HostKind kind);
HostKind host_kind(const void* address);
void* allocate_pinned(size_t size);
void free_pinned(void* address);
void register_host(void* address, size_t size);
void unregister_host(void* address);

/// What is open.
struct OpenMemory {
  size_t device_blocks = 0, device_bytes = 0, pinned = 0, registered = 0;
};
OpenMemory open_memory();

}  // namespace stand_in
