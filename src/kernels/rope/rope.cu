#include "cuda/device.cuh"

// One block for each token, one thread for each pair of channels.
namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    rope(T* x, const float* cos, const float* sin, int heads, int head_dim, int rotary_dim,
         float sign) {
  const int half = rotary_dim / 2;
  const int64_t row = blockIdx.x;
  x += row * heads * head_dim;
  cos += row * half;
  sin += row * half;
  for (int i = static_cast<int>(threadIdx.x); i < heads * half; i += kThreads) {
    const int channel = i % half;
    T* low = x + i / half * head_dim + channel;
    const Pair rotated = rotate(load(low), load(low + half), cos[channel], sign * sin[channel]);
    store(low, rotated.first);
    store(low + half, rotated.second);
  }
}

}  // namespace

void launch_rope(Type type, void* x, const float* cos, const float* sin, int64_t rows,
                 int64_t heads, int64_t head_dim, int64_t rotary_dim, float sign, Stream stream) {
  if (rows == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(rope<T>, static_cast<unsigned>(rows), kThreads, stream, static_cast<T*>(x), cos, sin,
           static_cast<int>(heads), static_cast<int>(head_dim), static_cast<int>(rotary_dim), sign);
  });
}

}  // namespace sftrun::kernels::cuda
