#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>

#define SFTRUN_CUDA_EMULATOR 1

/// CUDA kernels on the host: what device.cuh includes where no CUDA compiler reads the .cu files. A
/// thread of a block is a fibre, and a barrier switches to the next one. Blocks run one after the
/// other, so races between blocks do not show. See ../README.md.
namespace emulator {

/// In which order blocks of a grid, warps of a block and lanes of a warp take their turns: a warp
/// runs up to the block's next barrier, a lane up to the warp's. A result that depends on it has a
/// race.
enum class Order { kForward, kBackward, kRandom };
void set_order(Order order);

/// Calls around every launch, for memory that only kernels may touch.
struct MemoryGate {
  void (*open)() = nullptr;
  void (*close)() = nullptr;
};
void set_memory_gate(MemoryGate gate);

/// Takes the launches of some streams, to run them later, more than once or never.
struct LaunchRecorder {
  bool (*is_captured)(void* stream) = nullptr;
  void (*record)(void* stream, std::function<void()> launch) = nullptr;
};
void set_launch_recorder(LaunchRecorder recorder);

/// Runs `thread` once for each thread of each block. Ends the program with a message where the
/// card would refuse the launch or where the threads of a block wait for each other for ever.
/// @param thread holds the kernel's arguments by value: a recorder keeps a copy
/// @param shared_bytes of dynamic shared memory, at most what every card from sm_80 on has
void run(dim3 grid, unsigned threads, void* stream, const std::function<void()>& thread,
         size_t shared_bytes = 0);

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
const Index& thread_index();
const Index& block_index();
const Index& block_size();
const Index& grid_size();

/// __syncthreads(): threads that have ended count as arrived.
void synchronise_block();
unsigned lane();
/// An instruction of a whole warp: calls `compute` once, when all its lanes have come here, with what
/// each of them handed over. A lane that has ended, or that the block does not have: nullptr.
void together_in_warp(void* own, void (*compute)(void* const* lanes));
/// Every lane's 8 bytes, read by lane `from` of the same warp. All lanes of the warp must call it.
uint64_t exchange_in_warp(uint64_t own, unsigned from);
/// sums += a b. Each sum takes its products one after the other, as its rounding has it.
void add_products(float (&sums)[16][8], const float (&a)[16][16], const float (&b)[16][8]);

/// The block's dynamic shared memory; every byte is 0xff when a block begins.
char* dynamic_shared_memory();

/// Copies of 16 bytes that a thread starts, zeros where the source is not there. They are done when
/// the thread waits for them: what is read too early is still what was there before.
void copy_async(void* to, const void* from, bool is_there);
void end_copies();
void wait_for_copies(size_t pending_groups);

template <typename T>
T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = exchange_in_warp(bits, from);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
[[noreturn]] void fail(const char* what);
inline void require_full_mask(unsigned mask) {
  if (mask != 0xffffffffU) fail("a shuffle of some lanes only, which the emulator does not know");
}

}  // namespace emulator

// CUDA's words for where code and data live. cuda_runtime.h gives them attributes that g++ ignores
// or refuses.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __align__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // one block runs at a time
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_size())
#define gridDim (emulator::grid_size())

inline void __syncthreads() {
  emulator::synchronise_block();
}
inline void __syncwarp() {
  emulator::exchange_in_warp(0, emulator::lane());
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  emulator::require_full_mask(mask);
  return emulator::exchange(value, emulator::lane() ^ static_cast<unsigned>(lanes));
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  emulator::require_full_mask(mask);
  return emulator::exchange(value, static_cast<unsigned>(from));
}

// Blocks run one after the other.
inline void __threadfence() {}
inline unsigned atomicInc(unsigned* at, unsigned most) {
  const unsigned before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}

// Rounded where they stand: the compiler may not fuse what it does not see through.
inline float __fmul_rn(float a, float b) {
  float product = a * b;
  asm("" : "+x"(product));
  return product;
}
inline float __fadd_rn(float a, float b) {
  float sum = a + b;
  asm("" : "+x"(sum));
  return sum;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
