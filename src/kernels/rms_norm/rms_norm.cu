#include "cuda/device.cuh"

// One block for each row.
namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_forward(const T* x, const T* weight, T* y, float* rstd, int64_t hidden, float eps,
                     float offset) {
  const int64_t row = blockIdx.x;
  x += row * hidden;
  y += row * hidden;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) sum += load(x + i) * load(x + i);
  const float scale = 1.0F / sqrtf(block_sum(sum) / static_cast<float>(hidden) + eps);
  if (threadIdx.x == 0) rstd[row] = scale;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads)
    store(y + i, load(x + i) * scale * (offset + load(weight + i)));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward(const T* dy, const T* x, const T* weight, const float* rstd,
                      const T* residual, T* dx, int64_t hidden, float offset) {
  const int64_t row = blockIdx.x;
  dy += row * hidden;
  x += row * hidden;
  dx += row * hidden;
  if (residual != nullptr) residual += row * hidden;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads)
    dot += load(dy + i) * (offset + load(weight + i)) * load(x + i);
  const float scale = rstd[row];
  const float back = block_sum(dot) / static_cast<float>(hidden) * scale * scale;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    const float grad = scale * (load(dy + i) * (offset + load(weight + i)) - load(x + i) * back);
    store(dx + i, residual == nullptr ? grad : load(residual + i) + grad);
  }
}

}  // namespace

void launch_rms_norm_forward(Type type, const void* x, const void* weight, void* y, float* rstd,
                             int64_t rows, int64_t hidden, float eps, float offset, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(rms_norm_forward<T>, static_cast<unsigned>(rows), kThreads, stream,
           static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y), rstd,
           hidden, eps, offset);
  });
}

void launch_rms_norm_backward(Type type, const void* dy, const void* x, const void* weight,
                              const float* rstd, const void* residual, void* dx, int64_t rows,
                              int64_t hidden, float offset, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(rms_norm_backward<T>, static_cast<unsigned>(rows), kThreads, stream,
           static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(weight), rstd,
           static_cast<const T*>(residual), static_cast<T*>(dx), hidden, offset);
  });
}

}  // namespace sftrun::kernels::cuda
