#pragma once

#include <cstddef>
#include <cstdint>

/// Memory of a card that is memory of this machine. Its addresses are PROT_NONE but while an
/// emulated kernel runs: the host cannot read or write it by mistake. LibTorch's operators reach
/// the same pages by another mapping (`host_view`).
namespace host_backed {

bool is_device(const void* address);
void* host_view(const void* device_address);

/// Filled with 0xFF: NaN in every floating type. Every block has pages of its own, and ends where
/// a page does but for its alignment; the page behind belongs to nobody.   @return null where the
/// card's memory (SFTRUN_HOST_BACKED_MIB, 8192) does not suffice
void* allocate(size_t bytes, int device);
/// Ends the program where memory around the block was written, or it was released before.
void release(void* block);

/// A block of a graph: it stays, released or not, until it is let go.
void keep(void* block);
void let_go(void* block);
/// Of a block that was not released.
bool is_in_use(const void* block);
/// In a block that is still there.
bool is_there(const void* address);
/// As it was when it was allocated.
void fill(void* block);

struct MemoryUse {
  int64_t live_bytes = 0, peak_bytes = 0, live_blocks = 0, allocations = 0;
};
MemoryUse memory_use(int device);
void reset_peak(int device);

/// Host memory that is locked for copies, and the card that was current then.
void register_host(const void* begin, size_t bytes, int device);
bool unregister_host(const void* begin);
bool is_registered(const void* address);
size_t registered_ranges();

/// Around kernels: opens the blocks in use, and takes the lock under which only one runs.
void open_memory();
void close_memory();
/// Between the two: a graph's block, released or not.
void open_block(void* block);

int device_count();        ///< SFTRUN_HOST_BACKED_DEVICES, 1
int compute_capability();  ///< SFTRUN_HOST_BACKED_SM, 90

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace host_backed
