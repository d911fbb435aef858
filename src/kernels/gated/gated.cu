#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    gated_forward(Gating gating, const T* gate, const T* up, T* h, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    store(h + i, gated(gating, load(gate + i), load(up + i)));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    gated_backward(Gating gating, const T* dh, T* gate, T* up, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const Pair gradient = gated_gradient(gating, load(dh + i), load(gate + i), load(up + i));
    store(gate + i, gradient.first);
    store(up + i, gradient.second);
  }
}

}  // namespace

void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          int64_t n, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(gated_forward<T>, grid_of(n), kThreads, stream, gating, static_cast<const T*>(gate),
           static_cast<const T*>(up), static_cast<T*>(h), n);
  });
}

void launch_gated_backward(Type type, Gating gating, const void* dh, void* gate, void* up,
                           int64_t n, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(gated_backward<T>, grid_of(n), kThreads, stream, gating, static_cast<const T*>(dh),
           static_cast<T*>(gate), static_cast<T*>(up), n);
  });
}

}  // namespace sftrun::kernels::cuda
