#include "cuda/device.cuh"

// A block for each row, or where rows are short a warp: heads have 64 to 256 channels.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int64_t kShortRow = 1024;  // channels up to which a warp takes a row

/// The row of this thread, its place among the row's threads, and sums over these.
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
__global__ void __launch_bounds__(kThreads)
    rms_norm_forward(const T* x, const T* weight, T* y, float* rstd, int64_t rows, int64_t hidden,
                     float eps, float offset) {
  using Threads = RowThreads<kLanes>;
  const int64_t row = Threads::row();
  const bool is_row = row < rows;  // every thread of a warp takes part in its sums
  x += row * hidden;
  y += row * hidden;
  const int64_t end = is_row ? hidden : 0, first = Threads::lane() * kWidth;
  float sum = 0, values[kWidth], gains[kWidth];
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(x + i, values);
    for (int k = 0; k < kWidth; ++k) sum += values[k] * values[k];
  }
  const float scale = 1.0F / sqrtf(Threads::sum(sum) / static_cast<float>(hidden) + eps);
  if (is_row && Threads::lane() == 0) rstd[row] = scale;
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(x + i, values);
    load_values<kWidth>(weight + i, gains);
    for (int k = 0; k < kWidth; ++k) values[k] = values[k] * scale * (offset + gains[k]);
    store_values<kWidth>(y + i, values);
  }
}

template <typename T, int kLanes, int kWidth>
__global__ void __launch_bounds__(kThreads, 3)
    rms_norm_backward(const T* dy, const T* x, const T* weight, const float* rstd,
                      const T* residual, T* dx, int64_t rows, int64_t hidden, float offset) {
  using Threads = RowThreads<kLanes>;
  const int64_t row = Threads::row();
  const bool is_row = row < rows;
  const int64_t begin = row * hidden, end = is_row ? hidden : 0, first = Threads::lane() * kWidth;
  dy += begin;
  x += begin;
  dx += begin;
  if (residual != nullptr) residual += begin;
  float dot = 0, grads[kWidth], values[kWidth], gains[kWidth];
  for (int64_t i = first; i < end; i += kLanes * kWidth) {
    load_values<kWidth>(dy + i, grads);
    load_values<kWidth>(x + i, values);
    load_values<kWidth>(weight + i, gains);
    for (int k = 0; k < kWidth; ++k) dot += grads[k] * (offset + gains[k]) * values[k];
  }
  const float scale = is_row ? rstd[row] : 0.0F;
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

/// Calls body(threads of a row as a type, blocks).
template <typename Body>
void with_lanes(int64_t rows, int64_t hidden, Body&& body) {
  constexpr int64_t kRows = kThreads / kWarpThreads;  // of a block
  if (hidden <= kShortRow)
    body(std::integral_constant<int, kWarpThreads>(),
         static_cast<unsigned>((rows + kRows - 1) / kRows));
  else
    body(std::integral_constant<int, kThreads>(), static_cast<unsigned>(rows));
}

}  // namespace

void launch_rms_norm_forward(Type type, const void* x, const void* weight, void* y, float* rstd,
                             int64_t rows, int64_t hidden, float eps, float offset, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_lanes(rows, hidden, [&](auto lanes, unsigned grid) {
      with_width(in_eights(hidden, {x, weight, y}), [&](auto width) {
        launch(rms_norm_forward<T, decltype(lanes)::value, decltype(width)::value>, grid, kThreads,
               stream, static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y),
               rstd, rows, hidden, eps, offset);
      });
    });
  });
}

void launch_rms_norm_backward(Type type, const void* dy, const void* x, const void* weight,
                              const float* rstd, const void* residual, void* dx, int64_t rows,
                              int64_t hidden, float offset, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_lanes(rows, hidden, [&](auto lanes, unsigned grid) {
      with_width(in_eights(hidden, {dy, x, weight, residual, dx}), [&](auto width) {
        launch(rms_norm_backward<T, decltype(lanes)::value, decltype(width)::value>, grid, kThreads,
               stream, static_cast<const T*>(dy), static_cast<const T*>(x),
               static_cast<const T*>(weight), rstd, static_cast<const T*>(residual),
               static_cast<T*>(dx), rows, hidden, offset);
      });
    });
  });
}

}  // namespace sftrun::kernels::cuda
