#pragma once

#include "device.cuh"
#ifndef __CUDACC__
#include "tensor_cores.h"  // from the emulator
#endif

/// Tensor core and asynchronous copy instructions for a warp (PTX ISA, "Matrix multiply
/// instructions", mma.m16n8k16 and ldmatrix). With g = lane / 4 and t = lane % 4 a lane holds
///     accumulator [16, 8]     rows g (0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1
///     left operand [16, 16]   rows g (0, 2) and g + 8 (1, 3), columns 2 t, 2 t + 1 (0, 1) and
///                             2 t + 8, 2 t + 9 (2, 3), two elements per word
///     right operand [16, 8]   column g, rows 2 t, 2 t + 1 (0) and 2 t + 8, 2 t + 9 (1)
/// where the numbers in parentheses are indices of the lane's values or words.
namespace sftrun::kernels::cuda {

/// sums += a b for operands in bf16 or fp16 (T). All lanes must call it.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  emulator::multiply_add<T>(sums, a, b0, b1);
#endif
}

/// Loads four 8 x 8 matrices of 16-bit elements: lane 8 i + r passes the address of row r of matrix
/// i in shared memory, aligned to 16 bytes. Word i of a lane receives row lane / 4, columns
/// 2 (lane % 4) and the next one, of matrix i or, if kTransposed, of its transpose.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* row) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
#else
  emulator::load_matrices(words, row, kTransposed);
#endif
}

/// Starts an asynchronous copy of 16 bytes to shared memory; writes zeros if !is_there, but `from`
/// must be a valid address anyway. Both addresses are aligned to 16 bytes.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool is_there) {
#ifdef __CUDACC__
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#else
  emulator::copy_async(to, from, is_there);
#endif
}
/// Commits this thread's copies since the last call as a group, which may be empty.
__device__ __forceinline__ void end_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::end_copies();
#endif
}
/// Waits for all but the last kPending groups of this thread; other threads need a barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emulator::wait_for_copies(kPending);
#endif
}

/// Stages of shared memory that a block reads in turns. While it reads one, copies to the others are
/// under way. `begin(number)` starts this thread's copies to a stage, or none at the end.
template <int kStages>
class StageTurns {
 public:
  template <class Begin>
  __device__ __forceinline__ void begin_first(Begin&& begin) {
    for (int stage = 0; stage < kStages - 1; ++stage) {
      begin(stage);
      end_copies();
    }
  }
  /// Waits for the next stage and begins the copies to the one read before; returns its number. All
  /// threads of the block must call it.
  template <class Begin>
  __device__ __forceinline__ int next(Begin&& begin) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is there, and all have left the one before
    begin(read_ == 0 ? kStages - 1 : read_ - 1);
    end_copies();
    const int stage = read_;
    read_ = read_ == kStages - 1 ? 0 : read_ + 1;
    return stage;
  }

 private:
  int read_ = 0;
};

}  // namespace sftrun::kernels::cuda
