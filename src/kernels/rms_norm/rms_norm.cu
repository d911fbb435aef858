#include "cuda/device.cuh"
#include "rms_norm/rms_norm_launch.h"

// One block per row; one warp per row where rows are short, as for heads (64 to 256 channels).
namespace sftrun::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int64_t kShortRow = 1024;  // up to this many channels a warp processes a row

/// Row of this thread, its index among the row's threads, and sums over these.
template <int kLanes>
struct RowThreads {
  static_assert(kLanes == kThreads || kLanes == kWarpThreads);
  __device__ static int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static float sum(float value) {
    if constexpr (kLanes == kThreads)
      return block_sum(value);
    else
      return lanes_sum(value, kLanes);
  }
};

template <typename T, int kLanes, int kWidth>
__global__ void __launch_bounds__(kThreads) rms_norm_forward(const NormForward norm) {
  using Threads = RowThreads<kLanes>;
  const int64_t row = Threads::row(), hidden = norm.hidden;
  const bool is_row = row < norm.rows;  // all threads of a warp take part in the shuffles
  const T* x = static_cast<const T*>(norm.x) + row * hidden;
  const T* weight = static_cast<const T*>(norm.weight);
  T* y = static_cast<T*>(norm.y) + row * norm.y_stride;
  T* copy = norm.copy == nullptr ? nullptr : static_cast<T*>(norm.copy) + row * hidden;
  const int64_t end = is_row ? hidden : 0, first = Threads::lane() * kWidth;
  float sum = 0, values[kWidth], gains[kWidth];
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(x + i, values);
    for (int k = 0; k < kWidth; ++k) sum += values[k] * values[k];
  }
  const float scale = 1.0F / sqrtf(Threads::sum(sum) / static_cast<float>(hidden) + norm.eps);
  if (is_row && Threads::lane() == 0) norm.rstd[row] = scale;
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(x + i, values);
    load_values<kWidth>(weight + i, gains);
    if (copy != nullptr) store_values<kWidth>(copy + i, values);
    for (int k = 0; k < kWidth; ++k) values[k] = values[k] * scale * (norm.offset + gains[k]);
    store_values<kWidth>(y + i, values);
  }
}

template <typename T, int kLanes, int kWidth>
__global__ void __launch_bounds__(kThreads, 3) rms_norm_backward(const NormBackward norm) {
  using Threads = RowThreads<kLanes>;
  const int64_t row = Threads::row(), hidden = norm.hidden;
  const bool is_row = row < norm.rows;
  const int64_t end = is_row ? hidden : 0, first = Threads::lane() * kWidth;
  const T* dy = static_cast<const T*>(norm.dy) + row * norm.dy_stride;
  const T* x = static_cast<const T*>(norm.x) + row * hidden;
  const T* weight = static_cast<const T*>(norm.weight);
  const T* residual = norm.residual == nullptr
                          ? nullptr
                          : static_cast<const T*>(norm.residual) + row * norm.residual_stride;
  T* dx = static_cast<T*>(norm.dx) + row * norm.dx_stride;
  const float offset = norm.offset;
  float dot = 0, grads[kWidth], values[kWidth], gains[kWidth];
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(dy + i, grads);
    load_values<kWidth>(x + i, values);
    load_values<kWidth>(weight + i, gains);
    for (int k = 0; k < kWidth; ++k) dot += grads[k] * (offset + gains[k]) * values[k];
  }
  const float scale = is_row ? norm.rstd[row] : 0.0F;
  const float back = Threads::sum(dot) / static_cast<float>(hidden) * scale * scale;
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(dy + i, grads);
    load_values<kWidth>(x + i, values);
    load_values<kWidth>(weight + i, gains);
    for (int k = 0; k < kWidth; ++k)
      grads[k] = scale * (grads[k] * (offset + gains[k]) - values[k] * back);
    if (residual != nullptr) {
      load_values<kWidth>(residual + i, values);
      for (int k = 0; k < kWidth; ++k) grads[k] += values[k];
    }
    store_values<kWidth>(dx + i, grads);
  }
}

/// Calls body(threads per row as a type, number of blocks).
template <typename Body>
void with_lanes(int64_t rows, int64_t hidden, Body&& body) {
  constexpr int64_t kRows = kThreads / kWarpThreads;  // per block
  if (hidden <= kShortRow)
    body(std::integral_constant<int, kWarpThreads>(),
         static_cast<unsigned>((rows + kRows - 1) / kRows));
  else
    body(std::integral_constant<int, kThreads>(), static_cast<unsigned>(rows));
}

}  // namespace

void launch_rms_norm_forward(Type type, const NormForward& norm, Stream stream) {
  if (norm.rows == 0) return;
  const bool is_in_eights = in_eights(norm.hidden, {norm.x, norm.weight, norm.y, norm.copy}) &&
                            strides_in_eights(type, {norm.y_stride});
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_lanes(norm.rows, norm.hidden, [&](auto lanes, unsigned grid) {
      with_width(is_in_eights, [&](auto width) {
        launch(rms_norm_forward<T, decltype(lanes)::value, decltype(width)::value>, grid, kThreads,
               stream, norm);
      });
    });
  });
}

void launch_rms_norm_backward(Type type, const NormBackward& norm, Stream stream) {
  if (norm.rows == 0) return;
  const bool is_in_eights =
      in_eights(norm.hidden, {norm.dy, norm.x, norm.weight, norm.residual, norm.dx}) &&
      strides_in_eights(type, {norm.dy_stride, norm.residual_stride, norm.dx_stride});
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_lanes(norm.rows, norm.hidden, [&](auto lanes, unsigned grid) {
      with_width(is_in_eights, [&](auto width) {
        launch(rms_norm_backward<T, decltype(lanes)::value, decltype(width)::value>, grid, kThreads,
               stream, norm);
      });
    });
  });
}

const Provided kLaunchers[] = {{"launch_rms_norm_forward", launch_rms_norm_forward},
                               {"launch_rms_norm_backward", launch_rms_norm_backward}};

}  // namespace sftrun::kernels::cuda
