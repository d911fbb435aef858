#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

/// kWidth elements from i on.
template <int kWidth, typename T>
__device__ __forceinline__ void update(float* param, const float* grad, float* exp_avg,
                                       float* exp_avg_sq, T* compute, int64_t i,
                                       const AdamWParams& params) {
  float values[kWidth], grads[kWidth], averages[kWidth], squares[kWidth];
  load_values<kWidth>(param + i, values);
  load_values<kWidth>(grad + i, grads);
  load_values<kWidth>(exp_avg + i, averages);
  load_values<kWidth>(exp_avg_sq + i, squares);
  for (int k = 0; k < kWidth; ++k) {
    const AdamWElement updated =
        adamw_element({values[k], averages[k], squares[k]}, grads[k], params);
    values[k] = updated.param, averages[k] = updated.exp_avg, squares[k] = updated.exp_avg_sq;
  }
  store_values<kWidth>(param + i, values);
  store_values<kWidth>(exp_avg + i, averages);
  store_values<kWidth>(exp_avg_sq + i, squares);
  if (compute != nullptr) store_values<kWidth>(compute + i, values);
}

/// Each thread updates kWidth elements at a time; the last ones one by one.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, T* compute, int64_t n,
          AdamWParams params) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n;
       i += stride) {
    if (i + kWidth <= n) {
      update<kWidth>(param, grad, exp_avg, exp_avg_sq, compute, i, params);
    } else {
      for (int64_t last = i; last < n; ++last)
        update<1>(param, grad, exp_avg, exp_avg_sq, compute, last, params);
    }
  }
}

/// partial[block] = the sum of one chunk: fp32 over 16 elements of a thread, fp64 from there on.
/// @tparam kIsAligned x is, to 16 bytes; sums are the same
template <bool kIsAligned>
__global__ void __launch_bounds__(kThreads) sum_chunk(const float* x, int64_t n, double* partial) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumChunk;
  const int64_t end = first + kSumChunk < n ? first + kSumChunk : n;
  constexpr int kEight = 8, kRuns = 2, kStep = kEight * kThreads;
  double sum = 0;
  for (int64_t begin = first + static_cast<int64_t>(threadIdx.x) * kEight; begin < end;
       begin += kRuns * kStep) {
    float run = 0, values[kEight];
    for (int64_t i = begin; i < begin + kRuns * kStep; i += kStep) {
      if (kIsAligned && i + kEight <= end) {
        load_eight(x + i, values);
      } else {
        for (int k = 0; k < kEight; ++k) values[k] = i + k < end ? x[i + k] : 0.0F;
      }
      for (int k = 0; k < kEight; ++k) run += values[k] * values[k];
    }
    sum += static_cast<double>(run);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_partials(const double* partial, int64_t count, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

/// The largest over the block, in every thread. Call with all kThreads threads.
__device__ __forceinline__ float block_largest(float value) {
  __shared__ float of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  __syncthreads();  // an earlier call's have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) largest = fmaxf(largest, of_warp[warp]);
  return largest;
}

/// One thread for each element of a block of states.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    adamw_8bit(float* param, const float* grad, StateBlocks blocks, T* compute,
               StateMap exp_avg_map, StateMap exp_avg_sq_map, AdamW8bitParams params) {
  static_assert(kThreads == kStateBlock);
  for (int64_t block = blockIdx.x; block < blocks.count; block += gridDim.x) {
    const int64_t i = blocks.begin[block] + threadIdx.x;
    uint8_t* m_code = blocks.first.exp_avg + block * kStateBlock + threadIdx.x;
    uint8_t* v_code = blocks.first.exp_avg_sq + block * kStateBlock + threadIdx.x;
    const bool is_inside = static_cast<int>(threadIdx.x) < blocks.numel[block];
    float* m_absmax = blocks.first.exp_avg_absmax + block;
    float* v_absmax = blocks.first.exp_avg_sq_absmax + block;
    AdamWElement e{0, 0, 0};
    if (is_inside) {
      e = {param[i], rounded_product(exp_avg_map.values[*m_code], *m_absmax),
           rounded_product(exp_avg_sq_map.values[*v_code], *v_absmax)};
      e = adamw_8bit_element(e, grad[i], params);
      param[i] = e.param;
      if (compute != nullptr) store(compute + i, e.param);
    }
    // The factors are read before any thread is past the barriers within.
    const float m_largest = block_largest(fabsf(e.exp_avg)),
                v_largest = block_largest(e.exp_avg_sq);
    if (is_inside) {
      *m_code = exp_avg_map.codes[state_place(e.exp_avg, 1.0F / m_largest)];
      *v_code = exp_avg_sq_map.codes[state_place(e.exp_avg_sq, 1.0F / v_largest)];
    }
    if (threadIdx.x == 0) {
      *m_absmax = m_largest;
      *v_absmax = v_largest;
    }
  }
}

}  // namespace

void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    const bool is_aligned = in_eights(0, {param, grad, exp_avg, exp_avg_sq, compute});
    with_width(is_aligned, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(adamw<T, kWidth>, grid_of((n + kWidth - 1) / kWidth), kThreads, stream, param, grad,
             exp_avg, exp_avg_sq, static_cast<T*>(compute), n, params);
    });
  });
}

void launch_adamw_8bit(Type type, float* param, const float* grad, const StateBlocks& blocks,
                       void* compute, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                       const AdamW8bitParams& params, Stream stream) {
  if (blocks.count == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(adamw_8bit<T>, grid_of(blocks.count * kThreads), kThreads, stream, param, grad, blocks,
           static_cast<T*>(compute), exp_avg_map, exp_avg_sq_map, params);
  });
}

void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream) {
  const int64_t chunks = (n + kSumChunk - 1) / kSumChunk;
  const auto kernel = in_eights(0, {x}) ? sum_chunk<true> : sum_chunk<false>;
  if (chunks > 0) launch(kernel, static_cast<unsigned>(chunks), kThreads, stream, x, n, partial);
  launch(sum_partials, 1, kThreads, stream, partial, chunks, total);
}

}  // namespace sftrun::kernels::cuda
