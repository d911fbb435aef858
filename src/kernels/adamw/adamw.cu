#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, T* compute, int64_t n,
          AdamWParams params) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const AdamWElement updated =
        adamw_element({param[i], exp_avg[i], exp_avg_sq[i]}, grad[i], params);
    param[i] = updated.param;
    exp_avg[i] = updated.exp_avg;
    exp_avg_sq[i] = updated.exp_avg_sq;
    if (compute != nullptr) store(compute + i, updated.param);
  }
}

/// partial[block] = the sum of one chunk: fp32 over 16 elements of a thread, fp64 from there on.
__global__ void __launch_bounds__(kThreads) sum_chunk(const float* x, int64_t n, double* partial) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumChunk;
  const int64_t end = first + kSumChunk < n ? first + kSumChunk : n;
  constexpr int kRun = 16;
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kRun * kThreads) {
    float run = 0;
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const int64_t at = i + k * kThreads;
      if (at < end) run += x[at] * x[at];
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

}  // namespace

void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    adamw<T><<<grid_of(n), kThreads, 0, stream>>>(param, grad, exp_avg, exp_avg_sq,
                                                  static_cast<T*>(compute), n, params);
  });
}

void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream) {
  const int64_t chunks = (n + kSumChunk - 1) / kSumChunk;
  if (chunks > 0) sum_chunk<<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(x, n, partial);
  sum_partials<<<1, kThreads, 0, stream>>>(partial, chunks, total);
}

}  // namespace sftrun::kernels::cuda
