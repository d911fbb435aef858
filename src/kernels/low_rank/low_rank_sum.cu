#include "cuda/tensor_cores.cuh"
#include "low_rank/low_rank_sum_launch.h"

// y += base + low F for a thin `low` and a factor F of few rows: x A^T B^T and dy B A of adapters,
// with the product of the base weights. Memory-bound: reads and writes y once. A block computes
// kColumns columns of some rows. It keeps its columns of the factor, and copies the next rows of y,
// base and `low` while it multiplies.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kRows = 32, kColumns = 128;  // of a stage
constexpr int kRowsOfBlock = 256;
constexpr int kSumThreads = 256;
constexpr int kPiece = 8;  // elements of a copy

/// A block's shared memory: the factor, then stages, each with rows of `low`, y and base. Row
/// strides are padded against bank conflicts.
/// @tparam kAlongDepth the factor is stored transposed, as B is: rows of kMaxLowRank elements
template <typename T, bool kAlongDepth, bool kHasBase>
struct SumTiles {
  static_assert(sizeof(T) == 2);
  static constexpr int kRank = static_cast<int>(kMaxLowRank), kLowLead = kRank + kPiece,
                       kLead = kColumns + kPiece, kFactorRows = kAlongDepth ? kColumns : kRank,
                       kFactorLead = kAlongDepth ? kLowLead : kLead,
                       kFactor = kFactorRows * kFactorLead, kYAt = kRows * kLowLead,
                       kBaseAt = kYAt + kRows * kLead,
                       kStage = kBaseAt + (kHasBase ? kRows * kLead : 0),
                       kStages = kHasBase ? 3 : 4, kBytes = (kFactor + kStages * kStage) * 2;

  __device__ static __forceinline__ T* factor() {
    return reinterpret_cast<T*>(dynamic_shared_memory());
  }
  __device__ static __forceinline__ T* low(int stage) {
    return factor() + kFactor + stage * kStage;
  }
  __device__ static __forceinline__ T* y(int stage) { return low(stage) + kYAt; }
  __device__ static __forceinline__ T* base(int stage) { return low(stage) + kBaseAt; }
};

/// Tensor cores give a lane two neighbouring columns of each of their tiles. So that a lane has
/// eight neighbouring columns of y, one load, the columns of four tiles are those of y in another
/// order: the place of a column of y among 32.
__device__ __forceinline__ int place_of(int column) {
  const int lane = column / kPiece % 4, tile = column % kPiece / 2;
  return column / 32 * 32 + tile * 8 + lane * 2 + column % 2;
}

/// Begins to copy the rows of a tile and up to a multiple of 16 columns; zeros for what is not
/// there.   @param place of a row in the tile
template <typename T, class Place>
__device__ __forceinline__ void begin_rows(T* tile, int lead, const T* from, int64_t stride,
                                           int tile_rows, int64_t rows, int64_t columns,
                                           Place&& place) {
  const int pieces = static_cast<int>((columns + 15) / 16 * 2);
  for (int i = static_cast<int>(threadIdx.x); i < tile_rows * pieces; i += kSumThreads) {
    const int row = i / pieces, column = i % pieces * kPiece;
    const bool is_there = row < rows && column < columns;
    copy_async(tile + place(row) * lead + column, is_there ? from + row * stride + column : from,
               is_there);
  }
}

/// Begins to copy kRows x kColumns elements; what is not there is left.
template <typename T>
__device__ __forceinline__ void begin_columns(T* tile, const T* from, int64_t stride, int64_t rows,
                                              int64_t columns) {
  constexpr int kPieces = kColumns / kPiece;
#pragma unroll
  for (int first = 0; first < kRows * kPieces; first += kSumThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kPieces,
              column = i % kPieces * kPiece;
    if (row < rows && column < columns)
      copy_async(tile + row * (kColumns + kPiece) + column, from + row * stride + column, true);
  }
}

/// Copies the columns of a block, each to its place; zeros for what is not there.
template <typename T>
__device__ __forceinline__ void copy_columns(T* tile, int lead, const T* from, int64_t stride,
                                             int64_t rows, int64_t columns) {
  constexpr int kPieces = kColumns / kPiece;
  const int tile_rows = static_cast<int>((rows + 15) / 16 * 16);
  for (int i = static_cast<int>(threadIdx.x); i < tile_rows * kPieces; i += kSumThreads) {
    const int row = i / kPieces, column = i % kPieces * kPiece;
    uint4 words{};
    if (row < rows && column < columns)
      words = *reinterpret_cast<const uint4*>(from + row * stride + column);
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
    for (int k = 0; k < 4; ++k)
      *reinterpret_cast<uint32_t*>(tile + row * lead + place_of(column + 2 * k)) = pairs[k];
  }
}

/// A lane's part of a stage: two rows, eight apart, and of them eight neighbouring columns; its warp
/// has 16 rows and 32 columns.
struct LanePart {
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int warp_row = warp % (kRows / 16) * 16, warp_column = warp / (kRows / 16) * 32;
  int column = warp_column + lane % 4 * kPiece;

  __device__ __forceinline__ int row(int second) const { return warp_row + lane / 4 + second * 8; }
};
static_assert(kRows / 16 * (kColumns / 32) * 32 == kSumThreads);

/// The products of a warp's part, on tensor cores: of each of four tiles, two columns of two rows.
template <typename T, bool kAlongDepth, class P>
__device__ __forceinline__ void multiply_part(float (&sums)[4][4], const LanePart& part,
                                              const T* low, int rank) {
  const int lane = part.lane, first = lane % 16, second = lane / 16 * 8;
  for (int k = 0; k < rank; k += 16) {
    uint32_t a[4];
    load_matrices<false>(a, low + (part.warp_row + first) * P::kLowLead + k + second);
#pragma unroll
    for (int tile = 0; tile < 4; tile += 2) {
      uint32_t b[4];
      const int column = part.warp_column + tile * 8;
      if constexpr (kAlongDepth)
        load_matrices<false>(
            b, P::factor() + (column + second + lane % 8) * P::kFactorLead + k + lane / 8 % 2 * 8);
      else
        load_matrices<true>(b, P::factor() + (k + first) * P::kFactorLead + column + second);
      multiply_add<T>(sums[tile], a, b[0], b[1]);
      multiply_add<T>(sums[tile + 1], a, b[2], b[3]);
    }
  }
}

/// The rows of a block, a stage at a time.
template <typename T, class P, bool kHasBase>
class SumStages {
 public:
  __device__ SumStages(const LowRankSum& sum, int64_t row, int64_t column)
      : low_(static_cast<const T*>(sum.low) + row * sum.low_stride),
        y_(static_cast<const T*>(sum.y) + row * sum.y_stride + column),
        base_(kHasBase ? static_cast<const T*>(sum.base) + row * sum.base_stride + column
                       : nullptr),
        sum_(sum),
        rows_(sum.rows - row < kRowsOfBlock ? sum.rows - row : kRowsOfBlock),
        columns_(sum.columns - column) {}

  /// Begins the first stages; the first of them waits for copies begun before, too.
  __device__ __forceinline__ void begin() {
    turns_.begin_first([&](int stage) { begin(stage); });
  }
  /// Waits for the next stage; returns its number. All threads must call it.
  __device__ __forceinline__ int next() {
    return turns_.next([&](int stage) { begin(stage); });
  }

 private:
  __device__ __forceinline__ void begin(int stage) {
    if (rows_ <= 0) return;
    begin_rows(P::low(stage), P::kLowLead, low_, sum_.low_stride, kRows, rows_, sum_.rank,
               [](int row) { return row; });
    begin_columns(P::y(stage), y_, sum_.y_stride, rows_, columns_);
    if constexpr (kHasBase) begin_columns(P::base(stage), base_, sum_.base_stride, rows_, columns_);
    low_ += kRows * sum_.low_stride;
    y_ += kRows * sum_.y_stride;
    if constexpr (kHasBase) base_ += kRows * sum_.base_stride;
    rows_ -= kRows;
  }

  const T *low_, *y_, *base_;
  const LowRankSum& sum_;
  int64_t rows_;  ///< that no copy was begun of
  int64_t columns_;
  StageTurns<P::kStages> turns_;
};

/// y = y + base + products of a lane's row.
template <typename T, class P, bool kHasBase>
__device__ __forceinline__ void store_row(T* to, int stage, int at, const float (&sums)[4][4],
                                          int second) {
  float values[kPiece], more[kPiece];
  load_eight(P::y(stage) + at, values);
  if constexpr (kHasBase) {
    load_eight(P::base(stage) + at, more);
    for (int k = 0; k < kPiece; ++k) values[k] += more[k];
  }
  for (int k = 0; k < kPiece; ++k) values[k] += sums[k / 2][second * 2 + k % 2];
  store_eight_at_once(to, values);
}

template <typename T, bool kAlongDepth, bool kHasBase>
__global__ void __launch_bounds__(kSumThreads, 2)
    low_rank_sum(const __grid_constant__ LowRankSum sum) {
  using P = SumTiles<T, kAlongDepth, kHasBase>;
  const LanePart part;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRowsOfBlock,
                first_column = static_cast<int64_t>(blockIdx.x) * kColumns,
                rows = sum.rows - first_row < kRowsOfBlock ? sum.rows - first_row : kRowsOfBlock,
                columns = sum.columns - first_column;
  const T* const factor = static_cast<const T*>(sum.factor);
  SumStages<T, P, kHasBase> stages(sum, first_row, first_column);
  if constexpr (kAlongDepth)
    begin_rows(P::factor(), P::kFactorLead, factor + first_column * sum.factor_stride,
               sum.factor_stride, kColumns, columns, sum.rank, place_of);
  stages.begin();
  if constexpr (!kAlongDepth)
    copy_columns(P::factor(), P::kFactorLead, factor + first_column, sum.factor_stride, sum.rank,
                 columns);
  T* const y = static_cast<T*>(sum.y) + first_row * sum.y_stride + first_column + part.column;
  for (int row = 0; row < rows; row += kRows) {
    const int stage = stages.next();
    float sums[4][4] = {};
    multiply_part<T, kAlongDepth, P>(sums, part, P::low(stage), static_cast<int>(sum.rank));
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int of_stage = part.row(second);
      if (row + of_stage < rows && part.column < columns)
        store_row<T, P, kHasBase>(y + (row + of_stage) * sum.y_stride, stage,
                                  of_stage * P::kLead + part.column, sums, second);
    }
  }
}

template <typename T, bool kAlongDepth>
void launch_low_rank_sum_of(const LowRankSum& sum, Stream stream) {
  const dim3 grid(static_cast<unsigned>((sum.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>((sum.rows + kRowsOfBlock - 1) / kRowsOfBlock));
  const auto begin = [&](auto has_base) {
    constexpr bool kHasBase = decltype(has_base)::value;
    launch_with_memory(low_rank_sum<T, kAlongDepth, kHasBase>, grid, kSumThreads,
                       SumTiles<T, kAlongDepth, kHasBase>::kBytes, stream, sum);
  };
  sum.base != nullptr ? begin(std::true_type()) : begin(std::false_type());
}

}  // namespace

void launch_low_rank_sum(Type type, const LowRankSum& sum, Stream stream) {
  if (sum.rows == 0 || sum.columns == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    if constexpr (sizeof(T) == 2) {
      if (sum.is_transposed)
        launch_low_rank_sum_of<T, true>(sum, stream);
      else
        launch_low_rank_sum_of<T, false>(sum, stream);
    }
  });
}

const Provided kLaunchers[] = {{"launch_low_rank_sum", launch_low_rank_sum}};

}  // namespace sftrun::kernels::cuda
