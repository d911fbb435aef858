#pragma once

#include <ATen/native/CPUBlas.h>
#include <c10/core/ScalarType.h>

#include <type_traits>

#include "sftrun/kernels/cpu_table.h"

/// Wrappers of LibTorch's brgemm (oneDNN's batch-reduce GEMM). T is float, or uint16_t that holds
/// bfloat16.
namespace sftrun::kernels {

/// Whether brgemm is fast for the dtype on this processor: needs AVX-512, for bf16 AVX512_BF16.
inline bool brgemm_serves(at::ScalarType dtype) {
  if (!__builtin_cpu_supports("avx512f")) return false;
  return dtype == at::kFloat || (dtype == at::kBFloat16 && __builtin_cpu_supports("avx512bf16"));
}

/// C [m, n] (+)= A [m, k] B [k, n]. The row stride of A is `a_stride`; B and C are contiguous. For
/// bf16, B is in VNNI layout: [k / 2][n][2].
template <typename T>
void brgemm(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t a_stride, const T* b,
            float* c) {
  if constexpr (std::is_same_v<T, float>) {
    at::native::cpublas::brgemm(m, n, k, a_stride, n, n, add, a, b, c);
  } else {
    at::native::cpublas::brgemm(m, n, k, a_stride, n, n, add,
                                reinterpret_cast<const at::BFloat16*>(a),
                                reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
  }
}

template <typename T>
const RowKernels<T>& row_kernels() {
  if constexpr (std::is_same_v<T, float>)
    return cpu_kernels().f32;
  else
    return cpu_kernels().bf16;
}

}  // namespace sftrun::kernels
