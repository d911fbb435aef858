#include <cstring>

#include "cuda/device.cuh"
#include "dequantize_groups.cuh"
#include "quant/dequantize_launch.h"

// Compiled with -fmad=false, as dequantize.cu. Rows are read twice, the second time from the L2
// cache.
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

template <int kWidth>
__device__ __forceinline__ void store_codes(uint8_t* to, const uint8_t* codes) {
  if constexpr (kWidth == 8) {
    uint2 words;
    memcpy(&words, codes, sizeof(words));
    *reinterpret_cast<uint2*>(to) = words;
  } else {
    to[0] = codes[0];
  }
}

/// Division of a row's values by its scale, correctly rounded. A product and two corrections: the
/// division of each value would bound the kernel, not its memory. (Markstein, Computation of
/// elementary functions on the IBM RISC System/6000 processor, 1990.)
class RowScale {
 public:
  __device__ __forceinline__ explicit RowScale(float scale)
      : scale_(scale), inverse_(1.0F / scale), is_plain_(scale > kMin && scale < kMax) {}
  __device__ __forceinline__ float value() const { return scale_; }
  __device__ __forceinline__ float divide(float value) const {
    if (!is_plain_) return __fdiv_rn(value, scale_);
    const float quotient = value * inverse_;
    // Keeps the sign if the result is -0.
    return copysignf(fmaf(fmaf(-quotient, scale_, value), inverse_, quotient), value);
  }

 private:
  /// For scales between these, no intermediate value that affects a code is denormal or infinite.
  static constexpr float kMin = 0x1p-60F, kMax = 0x1p60F;
  float scale_, inverse_;
  bool is_plain_;
};

/// Codes of two values, the first in the low byte.
__device__ __forceinline__ uint16_t e4m3_codes(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return static_cast<uint16_t>(e4m3_code_cut(first) | e4m3_code_cut(second) << 8);
#endif
}

/// One block per row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    round_to_e4m3(const T* x, const float* gains, uint8_t* codes, float* scales, int64_t n) {
  const int64_t row = blockIdx.x, first = static_cast<int64_t>(threadIdx.x) * kWidth;
  x += row * n;
  codes += row * n;
  float values[kWidth], of_gains[kWidth];
  const auto load_row = [&](int64_t i) {
    load_values<kWidth>(x + i, values);
    if (gains == nullptr) return;
    load_values<kWidth>(gains + i, of_gains);
    for (int k = 0; k < kWidth; ++k) values[k] *= of_gains[k];
  };
  float largest = 0;
#pragma unroll 2
  for (int64_t i = first; i < n; i += kThreads * kWidth) {
    load_row(i);
    for (int k = 0; k < kWidth; ++k) largest = fmaxf(largest, fabsf(values[k]));
  }
  const RowScale scale(e4m3_scale(block_largest(largest)));
  if (threadIdx.x == 0) scales[row] = scale.value();
#pragma unroll 2
  for (int64_t i = first; i < n; i += kThreads * kWidth) {
    load_row(i);
    uint8_t rounded[kWidth];
    if constexpr (kWidth == 1) {
      rounded[0] = e4m3_code_cut(scale.divide(values[0]));
    } else {
      for (int k = 0; k < kWidth; k += 2) {
        const uint16_t pair = e4m3_codes(scale.divide(values[k]), scale.divide(values[k + 1]));
        memcpy(rounded + k, &pair, sizeof(pair));
      }
    }
    store_codes<kWidth>(codes + i, rounded);
  }
}

template <typename View, typename T, int kWidth>
__global__ void __launch_bounds__(kUnpackThreads)
    dequantize_8bit(View matrix, const UnpackedRows<T> to, int64_t groups) {
  dequantize_groups<kWidth>(matrix, to, groups);
}

/// For matrices that do not consist of whole groups.
template <typename View, typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_8bit_singly(View matrix, const UnpackedRows<T> to, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    store(to.value(i), matrix.value(i));
}

template <typename View>
void launch_dequantize(Type type, const View& matrix, const ValueRows& to, Stream stream) {
  const int64_t n = matrix.rows * matrix.columns;
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    if (!matrix.groups_are_whole()) {
      launch(dequantize_8bit_singly<View, T>, grid_of(n), kThreads, stream, matrix,
             UnpackedRows<T>(to, matrix.columns), n);
      return;
    }
    with_width(rows_in_eights(type, to), [&](auto width) {
      launch(dequantize_8bit<View, T, decltype(width)::value>, unpack_grid(n / kGroup),
             kUnpackThreads, stream, matrix, UnpackedRows<T>(to, matrix.columns), n / kGroup);
    });
  });
}

}  // namespace

void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* scales, int64_t rows, int64_t columns, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(columns, {x, gains, codes}), [&](auto width) {
      launch(round_to_e4m3<T, decltype(width)::value>, static_cast<unsigned>(rows), kThreads,
             stream, static_cast<const T*>(x), gains, codes, scales, columns);
    });
  });
}

void launch_dequantize_8bit(Type type, const EightBitView& matrix, const ValueRows& to,
                            Stream stream) {
  launch_dequantize(type, matrix, to, stream);
}

void launch_dequantize_fp8_blocks(Type type, const Fp8BlockView& matrix, const ValueRows& to,
                                  Stream stream) {
  launch_dequantize(type, matrix, to, stream);
}

const Provided kLaunchers[] = {{"launch_round_to_e4m3", launch_round_to_e4m3},
                               {"launch_dequantize_8bit", launch_dequantize_8bit},
                               {"launch_dequantize_fp8_blocks", launch_dequantize_fp8_blocks}};

}  // namespace sftrun::kernels::cuda
