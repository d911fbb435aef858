#include "adapter_grads/adapter_grads_launch.h"
#include "cuda/tensor_cores.cuh"

// Gradients of LoRA A and B of several linears in one launch: products g^T x of which one side has
// few columns. Memory-bound: reads the wide side once. A block computes kWide columns of it and
// kRanks columns of the thin side over all tokens or, where that would be too few blocks for the
// GPU, over some of them; then the last of a tile's blocks adds what all have, in the order of their
// tokens. So the order of summation depends only on the number of tokens and of their parts. Each
// block needs many copies in flight: those of the next tokens are under way while it multiplies.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kWide = kGradColumns, kDepth = 64;  // wide columns of a block, tokens of a stage
constexpr int kGradThreads = 256;

/// A block's shared memory: stages, each with both sides and rstd of kDepth tokens. Row strides are
/// padded against bank conflicts; rows are aligned to 16 bytes.
template <typename T, int kRanksOfBlock>
struct GradTiles {
  static constexpr int kRanks = kRanksOfBlock;
  static constexpr int kWideLead = kWide + 8, kThinLead = kRanks + 8;
  static constexpr int kThinAt = kDepth * kWideLead * static_cast<int>(sizeof(T)),
                       kRstdAt = kThinAt + kDepth * kThinLead * static_cast<int>(sizeof(T)),
                       kStageBytes = kRstdAt + kDepth * static_cast<int>(sizeof(float)),
                       // Two blocks of a multiprocessor of Hopper, one of a GeForce.
      kMaxBytes = 96 * 1024, kStages = kMaxBytes / kStageBytes < 8 ? kMaxBytes / kStageBytes : 8,
                       kBytes = kStages * kStageBytes;
  static constexpr int kSumsLead = kRanks + 4;
  static_assert(kWide * kSumsLead * static_cast<int>(sizeof(float)) <= kBytes);
  static_assert(kThinAt % 16 == 0 && kRstdAt % 16 == 0 && kStageBytes % 16 == 0);

  struct Stage {
    T *wide, *thin;
    float* rstd;
  };
  __device__ static __forceinline__ Stage stage(int number) {
    char* const memory = dynamic_shared_memory() + number * kStageBytes;
    return {reinterpret_cast<T*>(memory), reinterpret_cast<T*>(memory + kThinAt),
            reinterpret_cast<float*>(memory + kRstdAt)};
  }
};

/// Product, first columns and tokens that a block computes, and its number among all tiles.
struct GradTile {
  int product;
  int64_t number, column, rank, token;
  int tokens;
};
__device__ __forceinline__ GradTile tile_of_block(const AdapterGrads& grads, int ranks) {
  int64_t tile = blockIdx.x;
  int product = 0;
  for (; product < grads.count - 1; ++product) {
    const int64_t tiles = (grads.products[product].wide_columns + kWide - 1) / kWide;
    if (tile < tiles) break;
    tile -= tiles;
  }
  const int64_t token = static_cast<int64_t>(blockIdx.z) * grads.part_tokens,
                left = grads.tokens - token;
  return {product,      static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y,
          tile * kWide, static_cast<int64_t>(blockIdx.y) * ranks,
          token,        static_cast<int>(left < grads.part_tokens ? left : grads.part_tokens)};
}

/// Columns of the thin side that a block has, rounded up to the tensor cores' 16.
__device__ __forceinline__ int ranks_of(const AdapterGrad& grad, const GradTile& tile,
                                        int max_ranks) {
  const int64_t ranks = (grad.rank - tile.rank + 15) / 16 * 16;
  return ranks < max_ranks ? static_cast<int>(ranks) : max_ranks;
}

/// A thread's copies of a tile of kDepth rows and kColumns columns of a side to shared memory: a
/// piece of every kRows-th row. What does not change from stage to stage is computed once, as few
/// instructions must keep many copies under way.
template <int kColumns, int kLead, int kWidth, typename T>
class TileCopies {
 public:
  /// @param last columns past it, a multiple of 16, are not copied
  __device__ TileCopies(const void* x, int64_t stride, int64_t columns, int64_t token,
                        int64_t column, int last)
      : x_(static_cast<const T*>(x)),
        from_(x_ + (token + row()) * stride + column + piece()),
        stride_(stride),
        is_needed_(piece() < last && row() < kDepth),
        is_there_(column + piece() < columns) {}

  /// Begins to copy the next kDepth rows, zeros for columns out of range and past `rows`.
  __device__ __forceinline__ void begin(T* tile, int rows) {
    if (!is_needed_) return;
    T* const to = tile + row() * kLead + piece();
#pragma unroll(kWidth == 1 ? 2 : kPasses)
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool is_inside = is_there_ && row() + pass * kRows < rows;
      const T* const from = is_inside ? from_ + pass * kRows * stride_ : x_;
      if constexpr (kWidth == 1)
        store(to + pass * kRows * kLead, is_inside ? load(from) : 0.0F);
      else
        copy_async(to + pass * kRows * kLead, from, is_inside);
    }
    from_ += kDepth * stride_;
  }

 private:
  static constexpr int kPiece = kWidth == 1 ? 1 : 16 / static_cast<int>(sizeof(T)),
                       kPieces = kColumns / kPiece,
                       kRows = kGradThreads / kPieces < kDepth ? kGradThreads / kPieces : kDepth,
                       kPasses = kDepth / kRows;
  static_assert(kGradThreads % kPieces == 0 && kPasses * kRows == kDepth);
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / kPieces;
  }
  __device__ static int piece() {
    return static_cast<int>(threadIdx.x) % kPieces * kPiece;
  }

  const T *x_, *from_;
  int64_t stride_;
  bool is_needed_, is_there_;
};

/// rstd of a stage's tokens, a token for each of the first threads. Its load is begun a stage before
/// it is stored, as the copies to shared memory are of 16 bytes.
class RstdOfStages {
 public:
  __device__ RstdOfStages(const float* rstd, int64_t token) : rstd_(rstd + token + threadIdx.x) {}
  /// @param rows of the next stage
  __device__ __forceinline__ void load(int rows) {
    value_ = static_cast<int>(threadIdx.x) < (rows < kDepth ? rows : kDepth) ? *rstd_ : 0;
    rstd_ += kDepth;
  }
  __device__ __forceinline__ void store(float* to) const {
    if (threadIdx.x < kDepth) to[threadIdx.x] = value_;
  }

 private:
  const float* rstd_;
  float value_ = 0;
};

/// Stages of a block in the order of their tokens.
template <class P, int kWidth, bool kHasNorm, typename T>
class Stages {
 public:
  __device__ Stages(const AdapterGrad& grad, const GradTile& tile, int ranks)
      : wide_(grad.wide, grad.wide_stride, grad.wide_columns, tile.token, tile.column, kWide),
        thin_(grad.thin, grad.thin_stride, grad.rank, tile.token, tile.rank, ranks),
        rstd_(grad.rstd, tile.token),
        tokens_(tile.tokens) {
    turns_.begin_first([&](int stage) {
      load_rstd();
      begin(stage);
    });
    load_rstd();
  }

  /// Waits for the next stage and begins one. All threads must call it.
  __device__ __forceinline__ typename P::Stage next() {
    const int stage = turns_.next([&](int following) { begin(following); });
    load_rstd();
    return P::stage(stage);
  }

 private:
  __device__ __forceinline__ void load_rstd() {
    if constexpr (kHasNorm) rstd_.load(tokens_);
  }
  __device__ __forceinline__ void begin(int number) {
    const auto stage = P::stage(number);
    if constexpr (kHasNorm) rstd_.store(stage.rstd);
    if (tokens_ > 0) {
      wide_.begin(stage.wide, tokens_);
      thin_.begin(stage.thin, tokens_);
    }
    tokens_ -= kDepth;
  }

  TileCopies<kWide, P::kWideLead, kWidth, T> wide_;
  TileCopies<P::kRanks, P::kThinLead, kWidth, T> thin_;
  RstdOfStages rstd_;
  int tokens_;  ///< that no copy was begun of; below 0 at the end
  StageTurns<P::kStages> turns_;
};

/// Two elements of T, each times its factor.
template <typename T>
__device__ __forceinline__ uint32_t times(uint32_t pair, float2 factors) {
  T elements[2];
  memcpy(elements, &pair, sizeof(pair));
  store(elements, load(elements) * factors.x);
  store(elements + 1, load(elements + 1) * factors.y);
  memcpy(&pair, elements, sizeof(pair));
  return pair;
}

/// A block's sums on tensor cores: a warp has 16 wide columns, and of each stage kTokens tokens.
/// @tparam kHasNorm the thin side is multiplied by rstd
template <typename T, class P, bool kHasNorm>
class GradSums {
 public:
  /// sums += wide^T thin
  __device__ __forceinline__ void add(const typename P::Stage& stage, int ranks) {
#pragma unroll
    for (int token = 0; token < kTokens; token += 16)
      add_tokens(stage, part() * kTokens + token, ranks);
  }
  /// @param out [kWide, P::kSumsLead] of the block. All threads must call it.
  __device__ __forceinline__ void write(float* out) const {
    for (int next = kParts - 1; next >= 0; --next) {
      if (part() == next)
        each([&](int at, float sum) { out[at] = next == kParts - 1 ? sum : out[at] + sum; });
      __syncthreads();
    }
  }

 private:
  __device__ __forceinline__ void add_tokens(const typename P::Stage& stage, int token, int ranks) {
    uint32_t a[4];
    load_matrices<true>(a, stage.wide + (token + row() + lane() / 16 * 8) * P::kWideLead +
                               column() + lane() / 8 % 2 * 8);
    float2 low{}, high{};
    if constexpr (kHasNorm) {
      const float* const rstd = stage.rstd + token + lane() % 4 * 2;
      low = *reinterpret_cast<const float2*>(rstd);
      high = *reinterpret_cast<const float2*>(rstd + 8);
    }
    const T* const thin =
        stage.thin + (token + row() + lane() / 8 % 2 * 8) * P::kThinLead + lane() / 16 * 8;
#pragma unroll
    for (int n = 0; n < P::kRanks; n += 16) {
      if (n > 0 && n >= ranks) break;
      uint32_t b[4];
      load_matrices<true>(b, thin + n);
      if constexpr (kHasNorm) {
        b[0] = times<T>(b[0], low), b[2] = times<T>(b[2], low);
        b[1] = times<T>(b[1], high), b[3] = times<T>(b[3], high);
      }
      multiply_add<T>(sums_[n / 8], a, b[0], b[1]);
      multiply_add<T>(sums_[n / 8 + 1], a, b[2], b[3]);
    }
  }
  static constexpr int kWarpsAcross = kWide / 16, kParts = kGradThreads / 32 / kWarpsAcross,
                       kTokens = kDepth / kParts;
  static_assert(kTokens % 16 == 0);
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int row() {
    return lane() % 8;
  }
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) / 32 % kWarpsAcross * 16;
  }
  __device__ static int part() {
    return static_cast<int>(threadIdx.x) / 32 / kWarpsAcross;
  }
  template <class Use>
  __device__ __forceinline__ void each(Use&& use) const {
    for (int n = 0; n < P::kRanks / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int wide = column() + lane() / 4 + i / 2 * 8, rank = n * 8 + lane() % 4 * 2 + i % 2;
        use(wide * P::kSumsLead + rank, sums_[n][i]);
      }
    }
  }
  float sums_[P::kRanks / 8][4] = {};
};

/// The same in fp32: four threads share a wide column.
template <class P, bool kHasNorm>
class GradSums<float, P, kHasNorm> {
 public:
  __device__ void add(const typename P::Stage& stage, int) {
    for (int k = 0; k < kDepth; ++k) {
      const float a = stage.wide[k * P::kWideLead + column()] * (kHasNorm ? stage.rstd[k] : 1);
      for (int i = 0; i < kCount; ++i)
        sums_[i] = fmaf(a, stage.thin[k * P::kThinLead + first() + i], sums_[i]);
    }
  }
  __device__ void write(float* out) const {
    for (int i = 0; i < kCount; ++i) out[column() * P::kSumsLead + first() + i] = sums_[i];
  }

 private:
  static constexpr int kCount = P::kRanks * kWide / kGradThreads;
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kWide; }
  __device__ static int first() { return static_cast<int>(threadIdx.x) / kWide * kCount; }
  float sums_[kCount] = {};
};

/// Whether four consecutive sums along one side form an aligned vector of `out`.
/// @param step, other_step elements between neighbouring sums along this side and the other
__device__ __forceinline__ bool is_in_fours(const float* out, int64_t count, int64_t step,
                                            int64_t other_step) {
  constexpr uintptr_t kVector = 16;
  return step == 1 && count % 4 == 0 && other_step % 4 == 0 &&
         reinterpret_cast<uintptr_t>(out) % kVector == 0;
}

/// out += scale * gain * result for the columns and ranks in range, in contiguous groups of
/// kColumns by kRanks.
/// @param out of the first rank   @param result of the first rank [kWide, P::kSumsLead]
template <typename T, class P, int kColumns, int kRanks>
__device__ __forceinline__ void add_sums(const AdapterGrad& grad, const AdapterGradPart& part,
                                         const GradTile& tile, float* first_out, int ranks,
                                         const float* result) {
  // Coalesced: consecutive threads access consecutive elements of `out`.
  const int across = kColumns > 1 ? kWide / kColumns : ranks / kRanks,
            pieces = kWide * ranks / (kColumns * kRanks);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kGradThreads) {
    const int column = kColumns > 1 ? i % across * kColumns : i / across,
              rank = kColumns > 1 ? i / across : i % across * kRanks;
    if (tile.column + column >= grad.wide_columns) continue;
    float* out = first_out + (tile.column + column) * part.wide_step + rank * part.rank_step;
    const float* sums = result + column * P::kSumsLead + rank;
    const auto factor = [&](int k) {
      if (grad.rstd == nullptr) return part.scale;
      const int64_t at = tile.column + column + k;
      return part.scale * (grad.offset + load(static_cast<const T*>(grad.weight) + at));
    };
    if constexpr (kColumns * kRanks == 4) {
      float values[4];
      load_four(out, values);
      for (int k = 0; k < 4; ++k)
        values[k] += kColumns > 1 ? factor(k) * sums[k * P::kSumsLead] : factor(0) * sums[k];
      store_four(out, values);
    } else {
      *out += factor(0) * sums[0];
    }
  }
}

/// Adds a block's sums to the matrices that its ranks belong to.
template <typename T, class P>
__device__ __forceinline__ void add_result(const AdapterGrad& grad, const GradTile& tile,
                                           const float* result) {
  int64_t first = -tile.rank;  // of the part, in the block
  for (int i = 0; i < grad.parts; ++i) {
    const AdapterGradPart& part = grad.part[i];
    const int64_t end = first + part.rank < P::kRanks ? first + part.rank : P::kRanks,
                  begin = first > 0 ? first : 0;
    float* const out = part.out + (begin - first) * part.rank_step;
    const int ranks = static_cast<int>(end - begin);
    first += part.rank;
    if (ranks <= 0) continue;
    const float* const sums = result + begin;
    if (is_in_fours(out, ranks, part.rank_step, part.wide_step))
      add_sums<T, P, 1, 4>(grad, part, tile, out, ranks, sums);
    else if (is_in_fours(out, grad.wide_columns, part.wide_step, part.rank_step))
      add_sums<T, P, 4, 1>(grad, part, tile, out, ranks, sums);
    else
      add_sums<T, P, 1, 1>(grad, part, tile, out, ranks, sums);
  }
}

/// The sums of a block's columns, into `result` [kWide, P::kSumsLead].
template <typename T, int kWidth, class P, bool kHasNorm>
__device__ __forceinline__ void sum_tokens(const AdapterGrad& grad, const GradTile& tile, int ranks,
                                           float* result) {
  Stages<P, kWidth, kHasNorm, T> stages(grad, tile, ranks);
  GradSums<T, P, kHasNorm> sums;
  for (int token = 0; token < tile.tokens; token += kDepth) sums.add(stages.next(), ranks);
  wait_for_copies<0>();
  __syncthreads();  // all have left the stages, whose memory `result` is
  sums.write(result);
  __syncthreads();
}

/// Calls use(index in `result`, index in a tile's partial sums) for groups of four sums.
/// @param ranks that the block has, a multiple of 16
template <class P, class Use>
__device__ __forceinline__ void each_four(int ranks, Use&& use) {
  const int fours = ranks / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kWide * fours; i += kGradThreads)
    use(i / fours * P::kSumsLead + i % fours * 4, i * 4);
}

/// Keeps a block's sums of some tokens. The last block of a tile to come here has true, and all
/// sums in `result`, added in the order of their tokens.
template <class P>
__device__ __forceinline__ bool sum_parts(const AdapterGrads& grads, const GradTile& tile,
                                          int ranks, float* result) {
  constexpr int kSums = kWide * P::kRanks;
  float* const of_tile = grads.partial_sums + tile.number * gridDim.z * kSums;
  each_four<P>(ranks, [&](int at, int sum) {
    float values[4];
    load_four(result + at, values);
    store_four(of_tile + static_cast<int64_t>(blockIdx.z) * kSums + sum, values);
  });
  if (!is_last_of(grads.arrivals + tile.number, gridDim.z)) return false;
  each_four<P>(ranks, [&](int at, int sum) {
    float total[4] = {}, values[4];
    for (unsigned part = 0; part < gridDim.z; ++part) {
      load_four(of_tile + static_cast<int64_t>(part) * kSums + sum, values);
      for (int k = 0; k < 4; ++k) total[k] += values[k];
    }
    store_four(result + at, total);
  });
  __syncthreads();
  return true;
}

template <typename T, int kWidth, int kRanks>
__global__ void __launch_bounds__(kGradThreads, 2)
    adapter_grads(const __grid_constant__ AdapterGrads grads) {
  using P = GradTiles<T, kRanks>;
  const GradTile tile = tile_of_block(grads, kRanks);
  const AdapterGrad& grad = grads.products[tile.product];
  if (tile.rank >= grad.rank) return;
  auto* const result = reinterpret_cast<float*>(dynamic_shared_memory());
  const int ranks = ranks_of(grad, tile, P::kRanks);
  if (grad.rstd != nullptr)
    sum_tokens<T, kWidth, P, true>(grad, tile, ranks, result);
  else
    sum_tokens<T, kWidth, P, false>(grad, tile, ranks, result);
  if (gridDim.z == 1 || sum_parts<P>(grads, tile, ranks, result))
    add_result<T, P>(grad, tile, result);
}

/// Whether the rows of all operands begin and end at multiples of 16 bytes.
bool grads_in_eights(Type type, const AdapterGrads& grads) {
  for (int i = 0; i < grads.count; ++i) {
    const AdapterGrad& grad = grads.products[i];
    if (!strides_in_eights(type, {grad.wide_stride, grad.thin_stride}) ||
        !in_eights(grad.wide_columns, {grad.wide}) || !in_eights(grad.rank, {grad.thin})) {
      return false;
    }
  }
  return true;
}

/// Columns of the thin side that a block has.
int ranks_of_blocks(Type type, const AdapterGrads& grads) {
  constexpr int kFew = 16;
  for (int i = 0; i < grads.count; ++i)
    if (grads.products[i].rank > kFew) return max_grad_ranks(type);
  return kFew;
}
dim3 grid_of(Type type, const AdapterGrads& grads) {
  int64_t tiles = 0, rank = 0;
  for (int i = 0; i < grads.count; ++i) {
    tiles += (grads.products[i].wide_columns + kWide - 1) / kWide;
    rank = grads.products[i].rank > rank ? grads.products[i].rank : rank;
  }
  const int ranks = ranks_of_blocks(type, grads);
  const int64_t parts =
      grads.part_tokens > 0 ? (grads.tokens + grads.part_tokens - 1) / grads.part_tokens : 0;
  return {static_cast<unsigned>(tiles), static_cast<unsigned>((rank + ranks - 1) / ranks),
          static_cast<unsigned>(parts)};
}

template <typename T, int kRanks>
void launch_grads(Type type, const AdapterGrads& grads, dim3 grid, Stream stream) {
  with_width(grads_in_eights(type, grads), [&](auto width) {
    launch_with_memory(adapter_grads<T, decltype(width)::value, kRanks>, grid, kGradThreads,
                       GradTiles<T, kRanks>::kBytes, stream, grads);
  });
}

}  // namespace

AdapterGradWork work_of(Type type, const AdapterGrads& grads) {
  const dim3 grid = grid_of(type, grads);
  const int64_t tiles = static_cast<int64_t>(grid.x) * grid.y;
  return {tiles, tiles * grid.z * kWide * ranks_of_blocks(type, grads)};
}

void launch_adapter_grads(Type type, const AdapterGrads& grads, Stream stream) {
  const dim3 grid = grid_of(type, grads);
  if (grid.x * grid.y * grid.z == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    if (ranks_of_blocks(type, grads) == 16)
      launch_grads<T, 16>(type, grads, grid, stream);
    else if constexpr (sizeof(T) == 2)
      launch_grads<T, 64>(type, grads, grid, stream);
  });
}

const Provided kLaunchers[] = {{"adapter_grad_work", work_of},
                               {"launch_adapter_grads", launch_adapter_grads}};

}  // namespace sftrun::kernels::cuda
