#include <cstring>

#include "cuda/device.cuh"

// Compiled without fused multiply-adds, as dequantize.cu. Rows are read twice, the second time from
// the second-level cache.
namespace sftrun::kernels::cuda {
namespace {

__device__ __forceinline__ float block_largest(float value) {
  __shared__ float of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = 0;
  for (int warp = 0; warp < kWarps; ++warp) largest = fmaxf(largest, of_warp[warp]);
  return largest;
}

/// One block for each row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    round_to_e4m3(const T* x, const float* gains, uint8_t* codes, float* factors, int64_t n) {
  const int64_t row = blockIdx.x;
  x += row * n;
  codes += row * n;
  const auto value = [&](int64_t i) {
    return gains == nullptr ? load(x + i) : load(x + i) * gains[i];
  };
  float largest = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) largest = fmaxf(largest, fabsf(value(i)));
  const float factor = e4m3_factor(block_largest(largest));
  if (threadIdx.x == 0) factors[row] = factor;
  for (int64_t i = threadIdx.x; i < n; i += kThreads)
    codes[i] = e4m3_code_cut(__fdiv_rn(value(i), factor));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_8bit(EightBitView matrix, T* y, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    store(y + i, matrix.value(i));
}

}  // namespace

void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* factors, int64_t rows, int64_t columns, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(round_to_e4m3<T>, static_cast<unsigned>(rows), kThreads, stream,
           static_cast<const T*>(x), gains, codes, factors, columns);
  });
}

void launch_dequantize_8bit(Type type, const EightBitView& matrix, void* y, Stream stream) {
  const int64_t n = matrix.rows * matrix.columns;
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(dequantize_8bit<T>, grid_of(n), kThreads, stream, matrix, static_cast<T*>(y), n);
  });
}

}  // namespace sftrun::kernels::cuda
