#include "cuda/device.cuh"

// Many small matrices copied and scaled in one launch: gridDim.y of them, each by gridDim.x blocks.
namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) copy_matrices(const MatrixPlacement* placements) {
  const MatrixPlacement at = placements[blockIdx.y];
  const T* from = static_cast<const T*>(at.from);
  T* to = static_cast<T*>(at.to);
  const int64_t n = at.rows * at.columns, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    store(to + i / at.columns * at.to_stride + i % at.columns, load(from + i) * at.scale);
}

}  // namespace

void launch_copy_matrices(Type type, const MatrixPlacement* placements, int64_t count,
                          Stream stream) {
  constexpr int64_t kMostAtOnce = 65535;
  constexpr unsigned kBlocks = 16;  // of a matrix: a rank times a layer's width
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    for (int64_t first = 0; first < count; first += kMostAtOnce) {
      const int64_t left = count - first, some = left < kMostAtOnce ? left : kMostAtOnce;
      launch(copy_matrices<T>, dim3(kBlocks, static_cast<unsigned>(some)), kThreads, stream,
             placements + first);
    }
  });
}

}  // namespace sftrun::kernels::cuda
