#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

/// Calls body(first element) for each kWidth of n elements that are this thread's.
template <int kWidth, typename Body>
__device__ __forceinline__ void for_own(int64_t n, Body&& body) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n;
       i += stride) {
    body(i);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_forward(Gating gating, const T* gate, const T* up, T* h, int64_t n) {
  for_own<kWidth>(n, [&](int64_t i) {
    float gates[kWidth], ups[kWidth];
    load_values<kWidth>(gate + i, gates);
    load_values<kWidth>(up + i, ups);
    for (int k = 0; k < kWidth; ++k) gates[k] = gated(gating, gates[k], ups[k]);
    store_values<kWidth>(h + i, gates);
  });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_backward(Gating gating, const T* dh, T* gate, T* up, int64_t n) {
  for_own<kWidth>(n, [&](int64_t i) {
    float grads[kWidth], gates[kWidth], ups[kWidth];
    load_values<kWidth>(dh + i, grads);
    load_values<kWidth>(gate + i, gates);
    load_values<kWidth>(up + i, ups);
    for (int k = 0; k < kWidth; ++k) {
      const Pair gradient = gated_gradient(gating, grads[k], gates[k], ups[k]);
      gates[k] = gradient.first;
      ups[k] = gradient.second;
    }
    store_values<kWidth>(gate + i, gates);
    store_values<kWidth>(up + i, ups);
  });
}

}  // namespace

void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          int64_t n, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(n, {gate, up, h}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(gated_forward<T, kWidth>, grid_of(n / kWidth), kThreads, stream, gating,
             static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(h), n);
    });
  });
}

void launch_gated_backward(Type type, Gating gating, const void* dh, void* gate, void* up,
                           int64_t n, Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(n, {dh, gate, up}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(gated_backward<T, kWidth>, grid_of(n / kWidth), kThreads, stream, gating,
             static_cast<const T*>(dh), static_cast<T*>(gate), static_cast<T*>(up), n);
    });
  });
}

}  // namespace sftrun::kernels::cuda
