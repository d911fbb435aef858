#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#ifndef __CUDACC__
#include "emulator.h"  // first: algorithms.h uses its rounding functions
#endif
#include "cuda/algorithms.h"
#include "cuda/packed.h"
#include "cuda/provided.h"
#include "cuda/types.h"

// Shared helpers of the kernels: typed loads and stores, block sums, dispatch on the dtype.
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

/// Eight consecutive elements; the pointer is aligned to 16 bytes.
__device__ __forceinline__ void load_eight(const float* p, float* values) {
  const auto* from = reinterpret_cast<const float4*>(p);
  const float4 first = from[0], second = from[1];
  values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
  values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
}
__device__ __forceinline__ float2 load_pair(const __nv_bfloat162& pair) {
  return __bfloat1622float2(pair);
}
__device__ __forceinline__ float2 load_pair(const __half2& pair) {
  return __half22float2(pair);
}
template <typename Pair>
__device__ __forceinline__ void load_eight_of_16(const void* p, float* values) {
  const uint4 words = *reinterpret_cast<const uint4*>(p);
  Pair pairs[4];
  memcpy(pairs, &words, sizeof(words));
  for (int i = 0; i < 4; ++i) {
    const float2 both = load_pair(pairs[i]);
    values[2 * i] = both.x, values[2 * i + 1] = both.y;
  }
}
__device__ __forceinline__ void load_eight(const __nv_bfloat16* p, float* values) {
  load_eight_of_16<__nv_bfloat162>(p, values);
}
__device__ __forceinline__ void load_eight(const __half* p, float* values) {
  load_eight_of_16<__half2>(p, values);
}
__device__ __forceinline__ void store_eight(float* p, const float* values) {
  auto* to = reinterpret_cast<float4*>(p);
  to[0] = make_float4(values[0], values[1], values[2], values[3]);
  to[1] = make_float4(values[4], values[5], values[6], values[7]);
}
template <typename T>
__device__ __forceinline__ void store_eight(T* p, const float* values) {
  static_assert(sizeof(T) == 2);
  T elements[8];
  for (int i = 0; i < 8; ++i) store(elements + i, values[i]);
  uint4 words;
  memcpy(&words, elements, sizeof(words));
  *reinterpret_cast<uint4*>(p) = words;
}

/// As store_eight, but always one store of 16 bytes, past the L1 cache: compilers may divide others.
template <typename T>
__device__ __forceinline__ void store_eight_at_once(T* p, const float* values) {
  static_assert(sizeof(T) == 2);
  uint4 words;
  store_eight(reinterpret_cast<T*>(&words), values);
#ifdef __CUDA_ARCH__
  __stcg(reinterpret_cast<uint4*>(p), words);
#else
  *reinterpret_cast<uint4*>(p) = words;
#endif
}

/// Four consecutive elements; the pointer is aligned to their size.
__device__ __forceinline__ void load_four(const float* p, float* values) {
  const float4 four = *reinterpret_cast<const float4*>(p);
  values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
}
__device__ __forceinline__ void store_four(float* p, const float* values) {
  *reinterpret_cast<float4*>(p) = make_float4(values[0], values[1], values[2], values[3]);
}
template <typename T>
__device__ __forceinline__ void store_four(T* p, const float* values) {
  static_assert(sizeof(T) == 2);
  T elements[4];
  for (int i = 0; i < 4; ++i) store(elements + i, values[i]);
  uint2 words;
  memcpy(&words, elements, sizeof(words));
  *reinterpret_cast<uint2*>(p) = words;
}

/// kWidth consecutive elements: 1, or 8 aligned to 16 bytes.
template <int kWidth, typename T>
__device__ __forceinline__ void load_values(const T* p, float* values) {
  if constexpr (kWidth == 8)
    load_eight(p, values);
  else
    values[0] = load(p);
}
template <int kWidth, typename T>
__device__ __forceinline__ void store_values(T* p, const float* values) {
  if constexpr (kWidth == 8)
    store_eight(p, values);
  else
    store(p, values[0]);
}

/// Whether rows of n contiguous elements can be read eight at a time: pointers are aligned to 16
/// bytes and n is a multiple of 8.
inline bool in_eights(int64_t n, std::initializer_list<const void*> pointers) {
  constexpr uintptr_t kAlignment = 16;
  if (n % 8 != 0) return false;
  for (const void* pointer : pointers)
    if (reinterpret_cast<uintptr_t>(pointer) % kAlignment != 0) return false;
  return true;
}

/// Whether all row strides are multiples of 16 bytes.
inline bool strides_in_eights(Type type, std::initializer_list<int64_t> strides) {
  const int64_t bytes = type == Type::kFloat32 ? 4 : 2;
  for (const int64_t stride : strides)
    if (stride * bytes % 16 != 0) return false;
  return true;
}

/// Calls body(width as a type): 8 if is_in_eights, else 1.
template <typename Body>
void with_width(bool is_in_eights, Body&& body) {
  if (is_in_eights)
    body(std::integral_constant<int, 8>());
  else
    body(std::integral_constant<int, 1>());
}

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Sum over `lanes` consecutive threads of a warp (a power of two), in each of them. All threads of
/// the warp must call it.
__device__ __forceinline__ float lanes_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}

/// Sum over the block, in every thread, in a fixed order. All kThreads threads must call it.
template <typename Number>
__device__ __forceinline__ Number block_sum(Number value) {
  __shared__ Number of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  __syncthreads();  // the sums of an earlier call have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  Number total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += of_warp[warp];
  return total;
}

/// Whether this is the last of `blocks` blocks to call it: it then sees what the others wrote to
/// global memory before. All threads must call it.
/// @param arrivals 0 before the first and after the last
__device__ __forceinline__ bool is_last_of(unsigned* arrivals, unsigned blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(arrivals, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return is_last;
}

/// Copies the tables to shared memory, where threads can read different addresses at the same time;
/// kernel parameters (constant memory) serve one address at a time. All threads must call it.
__device__ __forceinline__ const FourBitTables* shared_tables(const FourBitTables& tables,
                                                              bool nested) {
  __shared__ FourBitTables here;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  if (thread < 16) here.values[thread] = tables.values[thread];
  if (nested)
    for (int i = thread; i < 256; i += threads) here.nested[i] = tables.nested[i];
  __syncthreads();
  return &here;
}

/// Calls body(null pointer of the element type).
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

/// Disables template argument deduction for a parameter.
template <typename T>
struct AsGiven {
  using Type = T;
};

/// Launches a kernel. All launches use this or `launch_with_memory`: tests compile the kernels for
/// the host, where the threads of a block are fibres (tests/cuda/emulator).
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            typename AsGiven<Parameters>::Type... arguments) {
#ifdef __CUDACC__
  kernel<<<grid, static_cast<unsigned>(threads), 0, stream>>>(arguments...);
#else
  emulator::run(grid, static_cast<unsigned>(threads), stream, [=] { kernel(arguments...); });
#endif
}

/// The same with `bytes` of dynamic shared memory, which may exceed the default limit of 48 KiB.
/// Errors are left for cudaGetLastError().
template <typename... Parameters>
void launch_with_memory(void (*kernel)(Parameters...), dim3 grid, int threads, int bytes,
                        Stream stream, typename AsGiven<Parameters>::Type... arguments) {
#ifdef __CUDACC__
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<size_t>(bytes), stream>>>(
      arguments...);
#else
  emulator::run(
      grid, static_cast<unsigned>(threads), stream, [=] { kernel(arguments...); },
      static_cast<size_t>(bytes));
#endif
}

/// The block's dynamic shared memory, aligned to 128 bytes.
__device__ __forceinline__ char* dynamic_shared_memory() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) char memory[];
  return memory;
#else
  return emulator::dynamic_shared_memory();
#endif
}

/// Number of blocks for n elements with one thread each; kernels loop if the limit is exceeded.
inline unsigned grid_of(int64_t n) {
  constexpr int64_t kLimit = 1 << 20;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kLimit ? blocks : kLimit);
}

}  // namespace sftrun::kernels::cuda
