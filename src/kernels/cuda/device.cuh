#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/algorithms.h"
#include "cuda/launch.h"

// What the kernels share: elements of each type, sums over a block, dispatch on the type.
namespace sftrun::kernels::cuda {

__device__ __forceinline__ float load(const float* p) {
  return *p;
}
__device__ __forceinline__ float load(const __nv_bfloat16* p) {
  return __bfloat162float(*p);
}
__device__ __forceinline__ float load(const __half* p) {
  return __half2float(*p);
}
__device__ __forceinline__ void store(float* p, float value) {
  *p = value;
}
__device__ __forceinline__ void store(__nv_bfloat16* p, float value) {
  *p = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store(__half* p, float value) {
  *p = __float2half_rn(value);
}

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// The sum over the block, in every thread; the order depends on the block's size alone. Call with
/// all kThreads threads.
template <typename Number>
__device__ __forceinline__ Number block_sum(Number value) {
  __shared__ Number of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  __syncthreads();  // an earlier call's sums have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  Number total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += of_warp[warp];
  return total;
}

/// Calls body(typed null pointer).
template <typename Body>
void for_type(Type type, Body&& body) {
  if (type == Type::kFloat32)
    body(static_cast<float*>(nullptr));
  else if (type == Type::kBFloat16)
    body(static_cast<__nv_bfloat16*>(nullptr));
  else
    body(static_cast<__half*>(nullptr));
}

template <typename Pointer>
using Element = std::remove_pointer_t<Pointer>;

/// Blocks for n elements, one thread for each, with a loop past the limit.
inline unsigned grid_of(int64_t n) {
  constexpr int64_t kLimit = 1 << 20;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kLimit ? blocks : kLimit);
}

}  // namespace sftrun::kernels::cuda
