#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#ifndef __CUDACC__
#include "emulator.h"  // before the rest, which rounds as CUDA does where it is there
#endif
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

/// Eight elements of consecutive memory, aligned to 16 bytes.
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

/// Four elements, aligned to as many bytes as they have.
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

/// Whether rows of n elements can be read eight at a time: all begin at multiples of 16 bytes.
inline bool in_eights(int64_t n, std::initializer_list<const void*> pointers) {
  constexpr uintptr_t kAlignment = 16;
  if (n % 8 != 0) return false;
  for (const void* pointer : pointers)
    if (reinterpret_cast<uintptr_t>(pointer) % kAlignment != 0) return false;
  return true;
}

/// Whether rows so many elements apart all begin at multiples of 16 bytes, where the first does.
inline bool strides_in_eights(Type type, std::initializer_list<int64_t> strides) {
  const int64_t bytes = type == Type::kFloat32 ? 4 : 2;
  for (const int64_t stride : strides)
    if (stride * bytes % 16 != 0) return false;
  return true;
}

/// Calls body(width as a type): 8 where it may, else 1.
template <typename Body>
void with_width(bool is_in_eights, Body&& body) {
  if (is_in_eights)
    body(std::integral_constant<int, 8>());
  else
    body(std::integral_constant<int, 1>());
}

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// The sum over `lanes` neighbouring threads, a power of two of one warp, in each of them. Call
/// with all threads of the warp.
__device__ __forceinline__ float lanes_sum(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  return value;
}

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

/// A kernel's copy of its parameter, in memory that all threads look up at once; the parameter's
/// own serves one address at a time. Call with all threads.
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

/// A parameter whose type is not deduced from its argument.
template <typename T>
struct AsGiven {
  using Type = T;
};

/// Starts a kernel. The only launches in the code: tests compile the kernels for the host, where a
/// block's threads are fibres (tests/cuda/emulator).
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            typename AsGiven<Parameters>::Type... arguments) {
#ifdef __CUDACC__
  kernel<<<grid, static_cast<unsigned>(threads), 0, stream>>>(arguments...);
#else
  emulator::run(grid, static_cast<unsigned>(threads), stream, [=] { kernel(arguments...); });
#endif
}

/// The same with `bytes` of dynamic shared memory, which may be more than the 48 KiB that a kernel
/// has without asking; errors are left for cudaGetLastError().
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

/// Blocks for n elements, one thread for each, with a loop past the limit.
inline unsigned grid_of(int64_t n) {
  constexpr int64_t kLimit = 1 << 20;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kLimit ? blocks : kLimit);
}

}  // namespace sftrun::kernels::cuda
