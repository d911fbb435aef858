#pragma once

#include "device.cuh"
#ifndef __CUDACC__
#include "tensor_cores.h"  // the emulator's
#endif

/// Tensor cores and asynchronous copies as a warp's lanes call them (PTX ISA, "Matrix multiply
/// instructions", mma.m16n8k16 and ldmatrix). With g = lane / 4 and t = lane % 4 a lane holds
///     of a result [16, 8]         rows g (0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1
///     of a left operand [16, 16]  rows g (0, 2) and g + 8 (1, 3), columns 2 t, 2 t + 1 (0, 1) and
///                                 2 t + 8, 2 t + 9 (2, 3), two elements in a word
///     of a right operand [16, 8]  column g, rows 2 t, 2 t + 1 (0) and 2 t + 8, 2 t + 9 (1)
namespace sftrun::kernels::cuda {

/// sums += a b for operands of bf16 or fp16 (T). Call with all lanes.
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

/// Four matrices of 8 x 8 elements of 16 bits: lane 8 i + r gives the address of row r of matrix i,
/// in shared memory and aligned to 16 bytes. A lane gets of matrix i in word i row lane / 4,
/// columns 2 (lane % 4) and the next one; of a transposed matrix what these are then.
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

/// Starts a copy of 16 bytes to shared memory; zeros where the source is not there, whose address
/// must still be valid. Both are aligned to 16 bytes.
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
/// Ends a group of a thread's copies, which may be empty.
__device__ __forceinline__ void end_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::end_copies();
#endif
}
/// Waits for a thread's own groups but the last kPending; others see them after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emulator::wait_for_copies(kPending);
#endif
}

}  // namespace sftrun::kernels::cuda
