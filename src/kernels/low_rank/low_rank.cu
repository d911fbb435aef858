#include "cuda/tensor_cores.cuh"

// x F for a factor F of few columns: x A^T and dy B of adapters. Memory-bound: reads x once. A block
// computes all columns of some rows. It reads x in stages of kDepth columns, and copies the next
// stages while it multiplies; its warps share the columns of a stage, so the order of summation
// depends only on the shapes.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kDepth = 128;  // columns of x in a stage
constexpr int kLowThreads = 256, kLowWarps = kLowThreads / 32;
constexpr int kPiece = 8;  // elements of a copy

/// A block's shared memory: stages, each with kDepth columns of x and kDepth rows of the factor.
/// Row strides are padded against bank conflicts.
/// @tparam kAlongDepth the factor is stored transposed, as A is: kRanks rows of kDepth elements
template <typename T, int kRowsOfBlock, int kRanksOfBlock, bool kAlongDepth>
struct LowRankTiles {
  static_assert(sizeof(T) == 2);
  static constexpr int kRows = kRowsOfBlock, kRanks = kRanksOfBlock;
  static constexpr int kFactorRows = kAlongDepth ? kRanks : kDepth,
                       kFactorColumns = kAlongDepth ? kDepth : kRanks;
  static constexpr int kLead = kDepth + kPiece, kFactorLead = kFactorColumns + kPiece;
  static constexpr int kFactorAt = kRows * kLead, kStage = kFactorAt + kFactorRows * kFactorLead;
  // Two blocks of a multiprocessor of Hopper, one of a GeForce.
  static constexpr int kMostBytes = 96 * 1024, kStageBytes = kStage * static_cast<int>(sizeof(T)),
                       kStages = kMostBytes / kStageBytes < 8 ? kMostBytes / kStageBytes : 8,
                       kBytes = kStages * kStageBytes;
  static constexpr int kSumsLead = kRanks + 4;
  static_assert(kStages >= 2 && kRows * kSumsLead * static_cast<int>(sizeof(float)) <= kBytes);

  __device__ static __forceinline__ T* x(int stage) {
    return reinterpret_cast<T*>(dynamic_shared_memory()) + stage * kStage;
  }
  __device__ static __forceinline__ T* factor(int stage) { return x(stage) + kFactorAt; }
};

/// Begins to copy a tile of kRows x kColumns elements to shared memory; zeros for what is not there.
template <int kRows, int kColumns, int kLead, typename T>
__device__ __forceinline__ void begin_tile(T* tile, const T* from, int64_t stride, int64_t rows,
                                           int64_t columns) {
  constexpr int kPieces = kColumns / kPiece, kCount = kRows * kPieces;
#pragma unroll
  for (int first = 0; first < kCount; first += kLowThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kPieces,
              column = i % kPieces * kPiece;
    if (kCount % kLowThreads != 0 && i >= kCount) return;
    const bool is_there = row < rows && column < columns;
    copy_async(tile + row * kLead + column, is_there ? from + row * stride + column : from,
               is_there);
  }
}

/// Stages of a block in the order of x's columns.
template <class P, bool kAlongDepth, typename T>
class LowRankStages {
 public:
  __device__ explicit LowRankStages(const LowRankProduct& product)
      : row_(static_cast<int64_t>(blockIdx.x) * P::kRows),
        x_(static_cast<const T*>(product.x) + row_ * product.x_stride),
        factor_(static_cast<const T*>(product.factor)),
        x_stride_(product.x_stride),
        factor_stride_(product.factor_stride),
        rows_(product.rows - row_),
        rank_(product.rank),
        columns_(product.columns) {
    for (int stage = 0; stage < P::kStages - 1; ++stage) begin(stage);
  }

  /// Waits for the next stage and begins one; returns its number. All threads must call it.
  __device__ __forceinline__ int next() {
    wait_for_copies<P::kStages - 2>();
    __syncthreads();  // the stage is there, and all have left the one before
    begin(read_ == 0 ? P::kStages - 1 : read_ - 1);
    const int stage = read_;
    read_ = read_ == P::kStages - 1 ? 0 : read_ + 1;
    return stage;
  }

 private:
  __device__ __forceinline__ void begin(int stage) {
    if (columns_ > 0) {
      begin_tile<P::kRows, kDepth, P::kLead>(P::x(stage), x_, x_stride_, rows_, columns_);
      begin_tile<P::kFactorRows, P::kFactorColumns, P::kFactorLead>(
          P::factor(stage), factor_, factor_stride_, kAlongDepth ? rank_ : columns_,
          kAlongDepth ? columns_ : rank_);
      x_ += kDepth;
      factor_ += kAlongDepth ? kDepth : kDepth * factor_stride_;
      columns_ -= kDepth;
    }
    end_copies();
  }

  int64_t row_;
  const T *x_, *factor_;
  int64_t x_stride_, factor_stride_, rows_, rank_;
  int64_t columns_;  ///< that no copy was begun of
  int read_ = 0;
};

/// A block's sums on tensor cores: a warp has 16 rows, and of each stage kPart columns of x.
template <typename T, class P, bool kAlongDepth>
class LowRankSums {
 public:
  __device__ __forceinline__ void add(const T* x, const T* factor) {
#pragma unroll
    for (int k = 0; k < kPart; k += 16) add_columns(x, factor, part() * kPart + k);
  }
  /// @param out [P::kRows, P::kSumsLead] of the block. All threads must call it.
  __device__ __forceinline__ void write(float* out) const {
    for (int next = 0; next < kParts; ++next) {
      if (part() == next)
        each([&](int at, float sum) { out[at] = next == 0 ? sum : out[at] + sum; });
      __syncthreads();
    }
  }

 private:
  static constexpr int kGroups = P::kRows / 16, kParts = kLowWarps / kGroups,
                       kPart = kDepth / kParts;
  static_assert(kParts * kGroups == kLowWarps && kPart % 16 == 0);
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / 32 % kGroups * 16;
  }
  __device__ static int part() {
    return static_cast<int>(threadIdx.x) / 32 / kGroups;
  }

  __device__ __forceinline__ void add_columns(const T* x, const T* factor, int k) {
    const int low = lane() % 16, high = lane() / 16 * 8;
    uint32_t a[4];
    load_matrices<false>(a, x + (row() + low) * P::kLead + k + high);
#pragma unroll
    for (int n = 0; n < P::kRanks; n += 16) {
      uint32_t b[4];
      if constexpr (kAlongDepth)
        load_matrices<false>(
            b, factor + (n + high + lane() % 8) * P::kFactorLead + k + lane() / 8 % 2 * 8);
      else
        load_matrices<true>(b, factor + (k + low) * P::kFactorLead + n + high);
      multiply_add<T>(sums_[n / 8], a, b[0], b[1]);
      multiply_add<T>(sums_[n / 8 + 1], a, b[2], b[3]);
    }
  }
  template <class Use>
  __device__ __forceinline__ void each(Use&& use) const {
    for (int n = 0; n < P::kRanks / 8; ++n)
      for (int i = 0; i < 4; ++i)
        use((row() + lane() / 4 + i / 2 * 8) * P::kSumsLead + n * 8 + lane() % 4 * 2 + i % 2,
            sums_[n][i]);
  }
  float sums_[P::kRanks / 8][4] = {};
};

/// Rounds a block's sums into `out` and, if wanted, `copy`.
template <typename T, class P>
__device__ __forceinline__ void store_low(const LowRankProduct& product, const float* sums) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * P::kRows;
  constexpr int kPieces = P::kRanks / kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < P::kRows * kPieces; i += kLowThreads) {
    const int64_t row = first + i / kPieces, column = i % kPieces * kPiece;
    if (row >= product.rows || column >= product.rank) continue;
    float values[kPiece];
    load_eight(sums + i / kPieces * P::kSumsLead + column, values);
    store_eight(static_cast<T*>(product.out) + row * product.out_stride + column, values);
    if (product.copy != nullptr)
      store_eight(static_cast<T*>(product.copy) + row * product.rank + column, values);
  }
}

template <typename T, int kRows, int kRanks, bool kAlongDepth>
__global__ void __launch_bounds__(kLowThreads)
    low_rank(const __grid_constant__ LowRankProduct product) {
  using P = LowRankTiles<T, kRows, kRanks, kAlongDepth>;
  LowRankStages<P, kAlongDepth, T> stages(product);
  LowRankSums<T, P, kAlongDepth> sums;
  for (int64_t column = 0; column < product.columns; column += kDepth) {
    const int stage = stages.next();
    sums.add(P::x(stage), P::factor(stage));
  }
  wait_for_copies<0>();
  __syncthreads();  // all have left the stages, whose memory `result` is
  auto* const result = reinterpret_cast<float*>(dynamic_shared_memory());
  sums.write(result);
  store_low<T, P>(product, result);
}

template <typename T, int kRows, int kRanks>
void launch_low_rank_of(const LowRankProduct& product, Stream stream) {
  const dim3 grid(static_cast<unsigned>((product.rows + kRows - 1) / kRows));
  const auto begin = [&](auto along_depth) {
    constexpr bool kAlongDepth = decltype(along_depth)::value;
    launch_with_memory(low_rank<T, kRows, kRanks, kAlongDepth>, grid, kLowThreads,
                       LowRankTiles<T, kRows, kRanks, kAlongDepth>::kBytes, stream, product);
  };
  product.is_transposed ? begin(std::true_type()) : begin(std::false_type());
}

template <typename T, int kRows>
void launch_low_rank_rows(const LowRankProduct& product, Stream stream) {
  if (product.rank <= 16)
    launch_low_rank_of<T, kRows, 16>(product, stream);
  else if (product.rank <= 32)
    launch_low_rank_of<T, kRows, 32>(product, stream);
  else if (product.rank <= 48)
    launch_low_rank_of<T, kRows, 48>(product, stream);
  else
    launch_low_rank_of<T, kRows, 64>(product, stream);
}

}  // namespace

void launch_low_rank(Type type, const LowRankProduct& product, Stream stream) {
  if (product.rows == 0 || product.rank == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    if constexpr (sizeof(T) == 2) {
      // Enough blocks for the card's multiprocessors; where there are many rows, the factor is read
      // less often.
      constexpr int64_t kMany = 3072;
      if (product.rows < kMany)
        launch_low_rank_rows<T, 16>(product, stream);
      else
        launch_low_rank_rows<T, 32>(product, stream);
    }
  });
}

}  // namespace sftrun::kernels::cuda
