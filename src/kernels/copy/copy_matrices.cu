#include "copy/copy_matrices_launch.h"
#include "cuda/device.cuh"

// Copies and scales many small matrices in one launch: matrix gridDim.y, each with gridDim.x
// blocks.
namespace sftrun::kernels::cuda {
namespace {

/// Whether all rows of source and destination can be accessed as 16-byte vectors.
template <typename T>
__device__ __forceinline__ bool has_whole_rows(const MatrixPlacement& at) {
  constexpr uintptr_t kVector = 16;
  const uintptr_t step = static_cast<uintptr_t>(at.to_stride) * sizeof(T);
  return at.columns % 8 == 0 &&
         (reinterpret_cast<uintptr_t>(at.from) | reinterpret_cast<uintptr_t>(at.to) | step) %
                 kVector ==
             0;
}

template <int kWidth, typename T>
__device__ __forceinline__ void copy_matrix(const MatrixPlacement& at) {
  const T* from = static_cast<const T*>(at.from);
  T* to = static_cast<T*>(at.to);
  const int64_t pieces = at.columns / kWidth, n = at.rows * pieces,
                stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    float values[kWidth];
    load_values<kWidth>(from + i * kWidth, values);
    for (int k = 0; k < kWidth; ++k) values[k] *= at.scale;
    store_values<kWidth>(to + i / pieces * at.to_stride + i % pieces * kWidth, values);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) copy_matrices(const MatrixPlacement* placements) {
  const MatrixPlacement at = placements[blockIdx.y];
  if (has_whole_rows<T>(at))
    copy_matrix<8, T>(at);
  else
    copy_matrix<1, T>(at);
}

}  // namespace

void launch_copy_matrices(Type type, const MatrixPlacement* placements, int64_t count,
                          Stream stream) {
  constexpr int64_t kMaxAtOnce = 65535;
  constexpr unsigned kBlocks = 16;  // per matrix, enough for lora_rank rows of a layer's width
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    for (int64_t first = 0; first < count; first += kMaxAtOnce) {
      const int64_t left = count - first, some = left < kMaxAtOnce ? left : kMaxAtOnce;
      launch(copy_matrices<T>, dim3(kBlocks, static_cast<unsigned>(some)), kThreads, stream,
             placements + first);
    }
  });
}

const Provided kLaunchers[] = {{"launch_copy_matrices", launch_copy_matrices}};

}  // namespace sftrun::kernels::cuda
