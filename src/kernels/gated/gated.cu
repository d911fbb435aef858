#include "cuda/device.cuh"
#include "gated/gated_launch.h"

namespace sftrun::kernels::cuda {
namespace {

/// Calls body(offset in h, offset in gate and up) for each of this thread's groups of kWidth.
template <int kWidth, typename Body>
__device__ __forceinline__ void for_own(const GatedShape& shape, Body&& body) {
  const int64_t n = shape.rows * shape.columns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n;
       i += stride) {
    if (shape.is_dense()) {
      body(i, i);
      continue;
    }
    const int64_t row = i / shape.columns, column = i - row * shape.columns;
    body(row * shape.h_stride + column, row * shape.stride + column);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_forward(Gating gating, const T* gate, const T* up, T* h, GatedShape shape) {
  for_own<kWidth>(shape, [&](int64_t to, int64_t from) {
    float gates[kWidth], ups[kWidth];
    load_values<kWidth>(gate + from, gates);
    load_values<kWidth>(up + from, ups);
    for (int k = 0; k < kWidth; ++k) gates[k] = gated(gating, gates[k], ups[k]);
    store_values<kWidth>(h + to, gates);
  });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_backward(Gating gating, T* dh, T* gate, T* up, GatedShape shape, GatedLeaves leaves) {
  for_own<kWidth>(shape, [&](int64_t i, int64_t from) {
    float grads[kWidth], gates[kWidth], ups[kWidth];
    load_values<kWidth>(dh + i, grads);
    load_values<kWidth>(gate + from, gates);
    load_values<kWidth>(up + from, ups);
    if (leaves == GatedLeaves::kActivation) {
      float activations[kWidth];
      for (int k = 0; k < kWidth; ++k) activations[k] = gated(gating, gates[k], ups[k]);
      store_values<kWidth>(dh + i, activations);
    }
    for (int k = 0; k < kWidth; ++k) {
      const Pair gradient = gated_gradient(gating, grads[k], gates[k], ups[k]);
      gates[k] = gradient.first;
      ups[k] = gradient.second;
    }
    store_values<kWidth>(gate + from, gates);
    store_values<kWidth>(up + from, ups);
  });
}

/// Dense rows count as one long row.
bool rows_in_eights(Type type, const GatedShape& shape,
                    std::initializer_list<const void*> pointers) {
  if (shape.is_dense()) return in_eights(shape.rows * shape.columns, pointers);
  return strides_in_eights(type, {shape.stride, shape.h_stride}) &&
         in_eights(shape.columns, pointers);
}

}  // namespace

void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          const GatedShape& shape, Stream stream) {
  if (shape.rows * shape.columns == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(rows_in_eights(type, shape, {gate, up, h}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(gated_forward<T, kWidth>, grid_of(shape.rows * shape.columns / kWidth), kThreads,
             stream, gating, static_cast<const T*>(gate), static_cast<const T*>(up),
             static_cast<T*>(h), shape);
    });
  });
}

void launch_gated_backward(Type type, Gating gating, void* dh, void* gate, void* up,
                           const GatedShape& shape, GatedLeaves leaves, Stream stream) {
  if (shape.rows * shape.columns == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(rows_in_eights(type, shape, {dh, gate, up}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(gated_backward<T, kWidth>, grid_of(shape.rows * shape.columns / kWidth), kThreads,
             stream, gating, static_cast<T*>(dh), static_cast<T*>(gate), static_cast<T*>(up), shape,
             leaves);
    });
  });
}

const Provided kLaunchers[] = {{"launch_gated_forward", launch_gated_forward},
                               {"launch_gated_backward", launch_gated_backward}};

}  // namespace sftrun::kernels::cuda
