#include "cuda/device.cuh"
#include "cuda/grouped.h"
#include "experts/grouped_scalar_launch.h"

// Grouped matrix products in one launch: 64 x 64 tiles in shared memory as fp32, one after the other.
// Slow beside grouped_tiles.cu, and right for every shape, address and dtype.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kTile = kGroupedTile, kStep = 32;  // side of a result tile; depth per iteration
// Row strides are padded to avoid shared-memory bank conflicts.
constexpr int kLeftLead = kStep + 1, kRightLead = kTile + 1, kSumsLead = kTile + 4;

/// tile[r * lead + c] = matrix(r, c), with coalesced reads.
template <int kRows, int kColumns, int kLead, typename T>
__device__ __forceinline__ void load_tile(float* tile, const MatrixView<T>& matrix) {
  const bool by_rows = matrix.column_stride == 1;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kThreads) {
    const int row = by_rows ? i / kColumns : i % kRows, column = by_rows ? i % kColumns : i / kRows;
    const T element = matrix.at(row, column);
    tile[row * kLead + column] = load(&element);
  }
}

/// A block's sums: each thread has 4 x 4 elements, 16 rows and columns apart.
class Sums {
 public:
  /// left [kTile, kStep] times right [kStep, kTile]
  __device__ void add(const float* left, const float* right) {
    for (int k = 0; k < kStep; ++k) {
      float b[4];
      for (int j = 0; j < 4; ++j) b[j] = right[k * kRightLead + column() + 16 * j];
      for (int i = 0; i < 4; ++i) {
        const float a = left[(row() + 16 * i) * kLeftLead + k];
        for (int j = 0; j < 4; ++j) sums_[i][j] = fmaf(a, b[j], sums_[i][j]);
      }
    }
  }
  __device__ void write(float* out) const {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j)
        out[(row() + 16 * i) * kSumsLead + column() + 16 * j] = sums_[i][j];
    }
  }

 private:
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 16; }
  float sums_[4][4] = {};
};

/// Calls put(row, column, value) for each element of the kTile x kTile product of left and right.
template <typename T, typename Put>
__device__ __forceinline__ void multiply_tile(const MatrixView<T>& left, const MatrixView<T>& right,
                                              Put&& put) {
  __shared__ float a[kTile * kLeftLead], b[kStep * kRightLead], result[kTile * kSumsLead];
  Sums sums;
  for (int64_t k = 0; k < left.columns; k += kStep) {
    load_tile<kTile, kStep, kLeftLead>(a, left.from(0, k));
    load_tile<kStep, kTile, kRightLead>(b, right.from(k, 0));
    __syncthreads();
    sums.add(a, b);
    __syncthreads();
  }
  sums.write(result);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int row = i / kTile, column = i % kTile;
    if (row < left.rows && column < right.columns)
      put(row, column, result[row * kSumsLead + column]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grouped_scalar(GroupedProduct<T> product, const int32_t* ends, int64_t experts, T* y) {
  const RowTile tile = row_tile(ends, experts, blockIdx.x);
  if (tile.rows == 0) return;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kTile;
  T* out = y + tile.begin * product.columns + first_column;
  multiply_tile(product.left(tile), product.right(tile, first_column),
                [&](int row, int column, float value) {
                  store(out + row * product.columns + column, value);
                });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grouped_scalar_gradient(GroupedGradient<T> product, const int32_t* ends, float* out) {
  const int64_t expert = blockIdx.z, begin = expert == 0 ? 0 : ends[expert - 1],
                rows = ends[expert] - begin;
  if (rows == 0) return;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile,
                first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  float* sums = out + (expert * product.n + first_row) * product.k + first_column;
  multiply_tile(product.left(begin, rows, first_row), product.right(begin, rows, first_column),
                [&](int row, int column, float value) { sums[row * product.k + column] += value; });
}

unsigned tiles(int64_t n) {
  return static_cast<unsigned>((n + kTile - 1) / kTile);
}

}  // namespace

void launch_grouped_scalar(Type type, const void* x, const void* w, const int32_t* ends, void* y,
                           const GroupedShape& shape, bool transposed, Stream stream) {
  if (shape.rows == 0 || shape.columns == 0) return;
  const dim3 grid(static_cast<unsigned>(max_row_tiles(shape.rows, shape.experts)),
                  tiles(shape.columns));
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(grouped_scalar<T>, grid, kThreads, stream,
           {static_cast<const T*>(x), static_cast<const T*>(w), shape.inner, shape.columns,
            transposed},
           ends, shape.experts, static_cast<T*>(y));
  });
}

void launch_grouped_scalar_tn(Type type, const void* g, const void* x, const int32_t* ends,
                              float* out, const GroupedShape& shape, Stream stream) {
  if (shape.rows == 0 || shape.inner == 0 || shape.columns == 0) return;
  const dim3 grid(tiles(shape.columns), tiles(shape.inner), static_cast<unsigned>(shape.experts));
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(grouped_scalar_gradient<T>, grid, kThreads, stream,
           {static_cast<const T*>(g), static_cast<const T*>(x), shape.inner, shape.columns}, ends,
           out);
  });
}

const Provided kLaunchers[] = {{"launch_grouped_scalar", launch_grouped_scalar},
                               {"launch_grouped_scalar_tn", launch_grouped_scalar_tn}};

}  // namespace sftrun::kernels::cuda
