#include "cross_entropy/cross_entropy_launch.h"
#include "cuda/device.cuh"

// One block per row: one pass over the logits for maximum and sum, one pass to overwrite them.
namespace sftrun::kernels::cuda {
namespace {

__device__ __forceinline__ SoftmaxState merge_over_block(SoftmaxState state) {
  // Not an array of SoftmaxState: shared memory cannot have default member initialisers.
  __shared__ float largest_of_warp[kWarps], sum_of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    SoftmaxState other;
    other.largest = __shfl_xor_sync(0xffffffffU, state.largest, offset);
    other.sum = __shfl_xor_sync(0xffffffffU, state.sum, offset);
    state = merge(state, other);
  }
  if (threadIdx.x % 32 == 0) {
    largest_of_warp[threadIdx.x / 32] = state.largest;
    sum_of_warp[threadIdx.x / 32] = state.sum;
  }
  __syncthreads();
  SoftmaxState total;
  for (int warp = 0; warp < kWarps; ++warp)
    total = merge(total, {largest_of_warp[warp], sum_of_warp[warp]});
  return total;
}

template <int kWidth, typename T>
__device__ __forceinline__ void write_zeros(T* row, int64_t columns) {
  const float zeros[kWidth] = {};
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kWidth; i < columns; i += kThreads * kWidth)
    store_values<kWidth>(row + i, zeros);
}

template <typename T, bool kGradient, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy(T* logits, const int32_t* labels, float* losses, int64_t vocab, float softcap,
                  float grad_scale, const float* grad_factor, const float* row_factors) {
  const int64_t row = blockIdx.x;
  logits += row * vocab;
  const int64_t label = labels[row];
  if (label < 0) {  // uniform across the block
    if (threadIdx.x == 0) losses[row] = 0;
    if constexpr (kGradient) write_zeros<kWidth>(logits, vocab);
    return;
  }
  // Read by every thread before the barrier below, after which the logit is overwritten.
  const float at_label = capped(load(logits + label), softcap);
  SoftmaxState state;
  float values[kWidth];
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth;
  for (int64_t i = first; i < vocab; i += kThreads * kWidth) {
    load_values<kWidth>(logits + i, values);
    for (int k = 0; k < kWidth; ++k) add_logit(state, capped(values[k], softcap));
  }
  state = merge_over_block(state);
  const float loss = state.largest + logf(state.sum) - at_label;
  if (threadIdx.x == 0) losses[row] = loss;
  if constexpr (kGradient) {
    if (grad_factor != nullptr) grad_scale *= *grad_factor;
    if (row_factors != nullptr) grad_scale *= row_factors[row];
    const float scale = grad_scale / state.sum,
                gradient_at_label = (expf(-loss) - 1.0F) * grad_scale;
    for (int64_t i = first; i < vocab; i += kThreads * kWidth) {
      load_values<kWidth>(logits + i, values);
      for (int k = 0; k < kWidth; ++k) {
        const float value = capped(values[k], softcap);
        const float gradient =
            i + k == label ? gradient_at_label : expf(value - state.largest) * scale;
        values[k] = gradient * cap_slope(value, softcap);
      }
      store_values<kWidth>(logits + i, values);
    }
  }
}

}  // namespace

void launch_cross_entropy(Type type, void* logits, const int32_t* labels, float* losses,
                          int64_t rows, int64_t vocab, float softcap, const LossGradient& gradient,
                          Stream stream) {
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(vocab, {logits}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const auto kernel =
          gradient.is_wanted ? cross_entropy<T, true, kWidth> : cross_entropy<T, false, kWidth>;
      launch(kernel, grid, kThreads, stream, static_cast<T*>(logits), labels, losses, vocab,
             softcap, gradient.scale, gradient.factor, gradient.row_factors);
    });
  });
}

const Provided kLaunchers[] = {{"launch_cross_entropy", launch_cross_entropy}};

}  // namespace sftrun::kernels::cuda
