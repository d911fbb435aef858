#include <cstring>

#include "cuda/grouped.h"
#include "cuda/tensor_cores.cuh"
#include "experts/grouped_tiles_launch.h"

// Grouped products on tensor cores (mma.m16n8k16). A block computes kRows x kColumns of the result and
// sums along kDepth elements per step. Dense operands are copied to shared memory asynchronously, steps
// ahead of their use. Quantised matrices are read as codes: a thread loads those of the next step
// into registers before it multiplies, and decodes them, rounded as dequantize.cu rounds, into one of
// two tiles. 48 KiB a block, so that a GeForce's multiprocessor has two. Compiled with -fmad=false.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kDepth = 32, kChunk = 8;  // elements of a step; elements copied at once
constexpr int kStages = 3, kFewStages = 2;

/// A tile of one operand in shared memory: kLines rows or columns of the result by kDepth elements of
/// the summed dimension. Rows of memory lie along the summed dimension (kAlong) or across it. Their
/// chunks of 16 bytes are permuted, so that eight rows' chunks lie in different banks for ldmatrix.
template <typename T, int kLines, bool kAlong>
struct OperandTile {
  static constexpr int kHeight = kAlong ? kLines : kDepth, kWidth = kAlong ? kDepth : kLines,
                       kChunks = kWidth / kChunk, kElements = kLines * kDepth;
  static_assert(kChunks == 4 || kChunks >= 8);

  __device__ static __forceinline__ int at(int row, int chunk) {
    const int turn = kChunks == 4 ? row / 2 % 4 : row % 8;
    return row * kWidth + (chunk ^ turn) * kChunk;
  }
  /// An operand of `multiply_add` [16 lines, 16 elements] from `line` and `depth` on; a right one is
  /// two of 8 lines: words 0, 1 and 2, 3.
  template <bool kLeft>
  __device__ static __forceinline__ void operand(uint32_t (&words)[4], const T* tile, int line,
                                                 int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
    const int lines = line + (kLeft ? matrix % 2 : matrix / 2) * 8,
              depths = depth + (kLeft ? matrix / 2 : matrix % 2) * 8;
    load_matrices<!kAlong>(words, tile + (kAlong ? at(lines + row, depths / kChunk)
                                                 : at(depths + row, lines / kChunk)));
  }
};

/// A dense operand in memory: `lines` rows or columns of the result by `depth` elements, each below
/// 2^31.
template <typename T>
struct Dense {
  const T* first;
  int64_t stride;  ///< of the rows of memory
  int64_t lines, depth;
};

/// This thread's copies of the tiles of a dense operand, one after the other.
template <typename T, int kLines, bool kAlong>
class Copies {
  using Tile = OperandTile<T, kLines, kAlong>;

 public:
  __device__ explicit Copies(const Dense<T>& operand)
      : base_(operand.first),
        from_(operand.first + row() * operand.stride + chunk() * kChunk),
        stride_(static_cast<int>(operand.stride)),
        left_(static_cast<int>(operand.depth) - (kAlong ? chunk() * kChunk : row())),
        lines_(static_cast<int>(operand.lines) - (kAlong ? row() : chunk() * kChunk)) {}

  /// Begins to copy the next tile, zeros beyond the operand.
  __device__ __forceinline__ void begin(T* tile) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (kIdle && row() >= Tile::kHeight) break;
      const int further = pass * kRows;
      const bool is_there = kAlong ? left_ > 0 && lines_ > further : left_ > further && lines_ > 0;
      copy_async(tile + Tile::at(row() + further, chunk()),
                 is_there ? from_ + int64_t{further} * stride_ : base_, is_there);
    }
    from_ += kAlong ? kDepth : int64_t{kDepth} * stride_;
    left_ -= kDepth;
  }

 private:
  static constexpr int kRows = kThreads / Tile::kChunks,
                       kPasses = (Tile::kHeight + kRows - 1) / kRows;
  static constexpr bool kIdle = kRows > Tile::kHeight;
  static_assert(kIdle || Tile::kHeight % kRows == 0);
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / Tile::kChunks;
  }
  __device__ static int chunk() {
    return static_cast<int>(threadIdx.x) % Tile::kChunks;
  }

  const T *base_, *from_;
  int stride_, left_, lines_;
};

/// Codes of groups of four bits, loaded first and decoded later.
struct FourBitCodes {
  FourBitView view;
  struct Group {
    uint32_t word;
    float absmax;
    uint8_t code;
  };
  __device__ __forceinline__ Group load(int64_t row, int64_t group) const {
    const int64_t first = row * view.columns + group * kGroup, block = first >> view.block_shift;
    Group codes{load_word(view.packed + first / 2), 0, 0};
    if (view.is_nested()) {
      codes.code = view.codes[block];
      codes.absmax = view.nested_absmax[(view.first_block + block) >> view.nested_shift];
    } else {
      codes.absmax = view.absmax[block];
    }
    return codes;
  }
  __device__ __forceinline__ void decode(const Group& codes, float* values) const {
    const float scale = view.is_nested()
                            ? view.tables->nested[codes.code] * codes.absmax + view.offset
                            : codes.absmax;
    values_of_codes(*view.tables, codes.word, values);
    for (int i = 0; i < kGroup; ++i) values[i] *= scale;
  }
};

/// The same of eight bits.
struct EightBitCodes {
  EightBitView view;
  struct Group {
    uint32_t words[2];
    float scale;
  };
  __device__ __forceinline__ Group load(int64_t row, int64_t group) const {
    const uint8_t* const from = view.codes + row * view.columns + group * kGroup;
    return {{load_word(from), load_word(from + 4)},
            view.scales == nullptr ? 1.0F : view.scales[row]};
  }
  __device__ __forceinline__ void decode(const Group& codes, float* values) const {
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<uint8_t>(codes.words[i / 4] >> (i % 4 * 8));
      values[i] = view.form == EightBits::kE4m3 ? e4m3_value(code) * codes.scale
                                                : int8_value(code, codes.scale);
    }
  }
};

/// This thread's part of the tiles of a quantised matrix: groups of eight codes, a chunk each. Beyond the
/// summed dimension they are zero; beyond the other one, where nobody reads the sums, codes of the last
/// line are decoded, because remembering which are there would take registers.
/// @tparam kAlong its rows lie along the summed dimension
template <typename Codes, typename T, int kLines, bool kAlong>
class DecodedTiles {
  using Tile = OperandTile<T, kLines, kAlong>;

 public:
  /// @param row, column of the first element   @param lines, depth as in `Dense`
  __device__ DecodedTiles(const Codes& codes, int64_t row, int64_t column, int64_t lines,
                          int64_t depth)
      : codes_(codes),
        row_(row + (kAlong ? at_most(this->row(), lines - 1) : this->row())),
        group_(static_cast<int>(column / kGroup) +
               (kAlong ? chunk() : at_most(chunk(), (lines - 1) / kGroup))),
        left_(static_cast<int>(depth) - (kAlong ? chunk() * kChunk : this->row())),
        lines_(static_cast<int>(lines) - this->row()) {}

  /// Begins to load the codes of the next tile.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int down = kAlong && lines_ <= pass * kRows ? 0 : pass * kRows;
      if (is_there(left_, pass)) loaded_[pass] = codes_.load(row_ + down, group_);
    }
    if constexpr (kAlong)
      group_ += kDepth / kGroup;
    else
      row_ += kDepth;
    left_ -= kDepth;
  }
  /// Decodes what was loaded.
  __device__ __forceinline__ void store(T* tile) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float values[kGroup] = {};
      if (is_there(left_ + kDepth, pass)) codes_.decode(loaded_[pass], values);
      store_eight(tile + Tile::at(row() + pass * kRows, chunk()), values);
    }
  }

 private:
  static constexpr int kRows = kThreads / Tile::kChunks, kPasses = Tile::kHeight / kRows;
  static_assert(Tile::kHeight % kRows == 0 && kChunk == kGroup);
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / Tile::kChunks;
  }
  __device__ static int chunk() {
    return static_cast<int>(threadIdx.x) % Tile::kChunks;
  }

  __device__ static int at_most(int value, int64_t limit) {
    return value < limit ? value : static_cast<int>(limit);
  }
  /// @param left of the summed dimension, from this thread's first element of the tile on
  __device__ static bool is_there(int left, int pass) {
    return left > (kAlong ? 0 : pass * kRows);
  }

  const Codes& codes_;
  int64_t row_;
  int group_, left_, lines_;
  typename Codes::Group loaded_[kPasses];
};

/// A block's sums in fp32. A warp has 32 columns and kWarpRows rows, and leaves out each 16 of them
/// that are beyond the result: an expert's last tile takes tensor cores no longer than its rows need.
template <typename T, int kRows, int kColumns>
class TileSums {
 public:
  /// @param rows of the result, from this tile's first on
  __device__ explicit TileSums(int64_t rows)
      : rows_(static_cast<int>(rows < kRows ? rows : kRows) - row()) {}
  /// sums += left right of one step
  template <bool kLeftAlong, bool kRightAlong>
  __device__ __forceinline__ void add(const T* left, const T* right) {
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 16) {
      uint32_t b[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        OperandTile<T, kColumns, kRightAlong>::template operand<false>(b[j], right,
                                                                       column() + 16 * j, depth);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        if (16 * i >= rows_) break;  // the same in all lanes
        uint32_t a[4];
        OperandTile<T, kRows, kLeftAlong>::template operand<true>(a, left, row() + 16 * i, depth);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          multiply_add<T>(sums_[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  /// Calls use(row, column, sums of this column and the next).
  template <class Use>
  __device__ __forceinline__ void each(Use&& use) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          use(row() + 16 * i + lane / 4 + 8 * half, column() + 8 * j + lane % 4 * 2,
              float2{sums_[i][j][2 * half], sums_[i][j][2 * half + 1]});
      }
    }
  }

 private:
  static constexpr int kAcross = kColumns / 32, kDown = kWarps / kAcross, kWarpRows = kRows / kDown,
                       kFragments = kWarpRows / 16;
  static_assert(kAcross * 32 == kColumns && kDown * kWarpRows == kRows &&
                kFragments * 16 == kWarpRows);
  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / 32 / kAcross * kWarpRows;
  }
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) / 32 % kAcross * 32;
  }

  int rows_;  ///< of the result from this warp's first on
  float sums_[kFragments][4][4] = {};
};

/// sums += left right for dense operands of the same depth. Afterwards shared memory is free.
template <int kOfStages, bool kLeftAlong, bool kRightAlong, typename T, int kRows, int kColumns>
__device__ __forceinline__ void add_dense(TileSums<T, kRows, kColumns>& sums, const Dense<T>& left,
                                          const Dense<T>& right) {
  auto* const memory = reinterpret_cast<T*>(dynamic_shared_memory());
  constexpr int kLeft = OperandTile<T, kRows, kLeftAlong>::kElements,
                kStage = kLeft + OperandTile<T, kColumns, kRightAlong>::kElements;
  Copies<T, kRows, kLeftAlong> of_left(left);
  Copies<T, kColumns, kRightAlong> of_right(right);
  const auto begin = [&](int stage) {
    of_left.begin(memory + stage * kStage);
    of_right.begin(memory + stage * kStage + kLeft);
  };
  StageTurns<kOfStages> turns;
  turns.begin_first(begin);
  for (int64_t depth = 0; depth < left.depth; depth += kDepth) {
    const T* const stage = memory + turns.next(begin) * kStage;
    sums.template add<kLeftAlong, kRightAlong>(stage, stage + kLeft);
  }
  wait_for_copies<0>();
  __syncthreads();
}

/// The same with a right operand that is decoded.
template <bool kRightAlong, typename Codes, typename T, int kRows, int kColumns>
__device__ __forceinline__ void add_decoded(TileSums<T, kRows, kColumns>& sums,
                                            const Dense<T>& left,
                                            DecodedTiles<Codes, T, kColumns, kRightAlong>& right) {
  auto* const memory = reinterpret_cast<T*>(dynamic_shared_memory());
  constexpr int kLeft = OperandTile<T, kRows, true>::kElements,
                kRight = OperandTile<T, kColumns, kRightAlong>::kElements;
  T* const decoded = memory + kStages * kLeft;
  Copies<T, kRows, true> of_left(left);
  const auto begin = [&](int stage) { of_left.begin(memory + stage * kLeft); };
  StageTurns<kStages> turns;
  turns.begin_first(begin);
  right.load();
  int tile = 0;
  for (int64_t depth = 0; depth < left.depth; depth += kDepth, tile ^= 1) {
    right.store(decoded + tile * kRight);  // read two steps ago: all have passed a barrier since
    right.load();
    const T* const stage = memory + turns.next(begin) * kLeft;
    sums.template add<true, kRightAlong>(stage, decoded + tile * kRight);
  }
  wait_for_copies<0>();
  __syncthreads();
}

/// Row stride of a block's result in shared memory: rows begin in different banks.
template <int kColumns>
constexpr int kResultLead = kColumns + kChunk;

constexpr int most(int a, int b) {
  return a > b ? a : b;
}
/// Bytes of shared memory of a block; elements have two.
constexpr int dense_bytes(int rows, int columns) {
  return 2 * most(kStages * (rows + columns) * kDepth, rows * (columns + kChunk));
}
constexpr int decoded_bytes(int rows, int columns) {
  return 2 * most((kStages * rows + 2 * columns) * kDepth,
                  most(kFewStages * (rows + columns) * kDepth, rows * (columns + kChunk)));
}

/// Finds the block's rows: tiles of `height` rows, counted expert by expert. All threads must call it.
__device__ __forceinline__ RowTile row_tile_of_block(const int32_t* ends, int64_t experts,
                                                     int64_t index, int height) {
  __shared__ RowTile found;
  __shared__ int of_warp[kWarps];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) found = {0, 0, 0};
  int64_t before = 0;  // tiles of the experts before these
  for (int64_t first = 0; first < experts && before <= index; first += kThreads) {
    const int64_t expert = first + thread;
    const int begin = expert == 0 || expert >= experts ? 0 : ends[expert - 1],
              end = expert >= experts ? begin : ends[expert];
    const int tiles = (end - begin + height - 1) / height;
    int up_to = tiles;  // of this warp's experts, this one included
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_sync(0xffffffffU, up_to, lane >= lanes ? lane - lanes : lane);
      if (lane >= lanes) up_to += other;
    }
    __syncthreads();  // the counts of the experts before have been read
    if (lane == 31) of_warp[warp] = up_to;
    __syncthreads();
    int64_t mine = before + up_to - tiles;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) mine += of_warp[w];
      before += of_warp[w];
    }
    if (mine <= index && index < mine + tiles) {
      const int64_t at = begin + (index - mine) * height, left = end - at;
      found = {expert, at, left < height ? left : height};
    }
  }
  __syncthreads();
  return found;
}

/// Adds to two neighbouring elements, aligned to four bytes.
template <typename T>
__device__ __forceinline__ void add_pair(T* at, float2 pair) {
  T elements[2];
  uint32_t word = *reinterpret_cast<const uint32_t*>(at);
  memcpy(elements, &word, sizeof(word));
  store(elements, load(elements) + pair.x);
  store(elements + 1, load(elements + 1) + pair.y);
  memcpy(&word, elements, sizeof(word));
  *reinterpret_cast<uint32_t*>(at) = word;
}

/// Writes a block's sums, or adds them, eight elements at a time.
template <typename T, int kRows, int kColumns>
__device__ __forceinline__ void write_sums(const TileSums<T, kRows, kColumns>& sums,
                                           const GroupedTiles& tiles, const RowTile& tile,
                                           int64_t first_column) {
  auto* const result = reinterpret_cast<T*>(dynamic_shared_memory());
  constexpr int kLead = kResultLead<kColumns>, kChunks = kColumns / kChunk;
  if (tiles.adds) {
    // In fp32 to the end: what is there is read where the sums are.
    auto* const y = static_cast<T*>(tiles.y) + tile.begin * tiles.columns + first_column;
    sums.each([&](int row, int column, float2 pair) {
      if (row >= tile.rows || first_column + column >= tiles.columns) return;
      add_pair(y + row * tiles.columns + column, pair);
    });
    return;
  }
  sums.each([&](int row, int column, float2 pair) {
    store(result + row * kLead + column, pair.x);
    store(result + row * kLead + column + 1, pair.y);
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kChunk;
    if (row >= tile.rows || first_column + column >= tiles.columns) continue;
    auto* const y = static_cast<T*>(tiles.y) + (tile.begin + row) * tiles.columns + first_column;
    *reinterpret_cast<uint4*>(y + column) =
        *reinterpret_cast<const uint4*>(result + row * kLead + column);
  }
}

template <typename T>
__device__ __forceinline__ Dense<T> left_of(const GroupedTerm& term, const RowTile& tile) {
  return {static_cast<const T*>(term.x) + tile.begin * term.inner, term.inner, tile.rows,
          term.inner};
}
template <typename T, bool kTransposed>
__device__ __forceinline__ Dense<T> right_of(const GroupedTerm& term, const GroupedTiles& tiles,
                                             const RowTile& tile, int64_t first_column) {
  const T* const of_expert =
      static_cast<const T*>(term.w) + tile.expert * term.inner * tiles.columns;
  const int64_t stride = kTransposed ? term.inner : tiles.columns;
  return {of_expert + first_column * (kTransposed ? stride : 1), stride,
          tiles.columns - first_column, term.inner};
}

/// Tiles beside each other. Their blocks follow each other, because they share x in the cache.
template <int kColumns>
__device__ __forceinline__ unsigned column_tiles(const GroupedTiles& tiles) {
  return static_cast<unsigned>((tiles.columns + kColumns - 1) / kColumns);
}

template <typename T, int kRows, int kColumns, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_tiles(const __grid_constant__ GroupedTiles tiles) {
  const unsigned across = column_tiles<kColumns>(tiles);
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % across) * kColumns;
  const RowTile tile = row_tile_of_block(tiles.ends, tiles.experts, blockIdx.x / across, kRows);
  if (tile.rows == 0) return;
  TileSums<T, kRows, kColumns> sums(tile.rows);
  add_dense<kStages, true, kTransposed>(
      sums, left_of<T>(tiles.product, tile),
      right_of<T, kTransposed>(tiles.product, tiles, tile, first_column));
  if (tiles.beside.x != nullptr) {
    add_dense<kFewStages, true, kTransposed>(
        sums, left_of<T>(tiles.beside, tile),
        right_of<T, kTransposed>(tiles.beside, tiles, tile, first_column));
  }
  write_sums(sums, tiles, tile, first_column);
}

template <typename Codes, typename T, int kRows, int kColumns, bool kTransposed>
__device__ __forceinline__ void multiply_codes(const GroupedTiles& tiles, const Codes& codes) {
  const unsigned across = column_tiles<kColumns>(tiles);
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % across) * kColumns,
                inner = tiles.product.inner;
  const RowTile tile = row_tile_of_block(tiles.ends, tiles.experts, blockIdx.x / across, kRows);
  if (tile.rows == 0) return;
  TileSums<T, kRows, kColumns> sums(tile.rows);
  DecodedTiles<Codes, T, kColumns, kTransposed> right(
      codes, tile.expert * (kTransposed ? tiles.columns : inner) + (kTransposed ? first_column : 0),
      kTransposed ? 0 : first_column, tiles.columns - first_column, inner);
  add_decoded<kTransposed>(sums, left_of<T>(tiles.product, tile), right);
  if (tiles.beside.x != nullptr) {
    add_dense<kFewStages, true, kTransposed>(
        sums, left_of<T>(tiles.beside, tile),
        right_of<T, kTransposed>(tiles.beside, tiles, tile, first_column));
  }
  write_sums(sums, tiles, tile, first_column);
}

template <typename T, int kRows, int kColumns, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_tiles_4bit(const __grid_constant__ GroupedTiles tiles, FourBitView w,
                       const __grid_constant__ FourBitTables tables) {
  w.tables = shared_tables(tables, w.is_nested());
  multiply_codes<FourBitCodes, T, kRows, kColumns, kTransposed>(tiles, FourBitCodes{w});
}

template <typename T, int kRows, int kColumns, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_tiles_8bit(const __grid_constant__ GroupedTiles tiles, EightBitView w) {
  multiply_codes<EightBitCodes, T, kRows, kColumns, kTransposed>(tiles, EightBitCodes{w});
}

/// out += g^T x over an expert's rows.
template <typename T, int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads, 2)
    grouped_gradients(const __grid_constant__ GroupedGradients gradients) {
  const int64_t expert = blockIdx.z, begin = expert == 0 ? 0 : gradients.ends[expert - 1],
                rows = gradients.ends[expert] - begin, n = gradients.n, k = gradients.k;
  if (rows == 0) return;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows,
                first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  TileSums<T, kRows, kColumns> sums(n - first_row);
  add_dense<kStages, false, false>(
      sums,
      Dense<T>{static_cast<const T*>(gradients.g) + begin * n + first_row, n, n - first_row, rows},
      Dense<T>{static_cast<const T*>(gradients.x) + begin * k + first_column, k, k - first_column,
               rows});
  float* const out = gradients.out + (expert * n + first_row) * k + first_column;
  sums.each([&](int row, int column, float2 pair) {
    if (first_row + row >= n || first_column + column >= k) return;
    auto* const at = reinterpret_cast<float2*>(out + row * k + column);
    const float2 before = *at;
    *at = {before.x + pair.x, before.y + pair.y};
  });
}

constexpr int kTile = 128, kLowTile = 64, kFewColumns = 32;

/// Calls body(null pointer of the element type, transposed).
template <typename Body>
void with_tiles(Type type, bool transposed, Body&& body) {
  const auto of_type = [&](auto* null) {
    if (transposed)
      body(null, std::true_type());
    else
      body(null, std::false_type());
  };
  if (type == Type::kBFloat16)
    of_type(static_cast<__nv_bfloat16*>(nullptr));
  else
    of_type(static_cast<__half*>(nullptr));
}

/// Whether experts have so few rows on average that tiles of 128 rows would be mostly empty.
bool are_low(const GroupedTiles& tiles) {
  return tiles.rows < tiles.experts * (kTile * 3 / 4);
}
unsigned blocks_of(const GroupedTiles& tiles, int height, int width) {
  const int64_t across = (tiles.columns + width - 1) / width,
                down =
                    tiles.rows / height + (tiles.rows < tiles.experts ? tiles.rows : tiles.experts);
  return static_cast<unsigned>(across * down);
}

/// Launches the kernel of the height that suits the experts' rows.
template <typename Low, typename High>
void launch_height(const GroupedTiles& tiles, Low&& low, High&& high) {
  if (are_low(tiles))
    low(blocks_of(tiles, kLowTile, kTile));
  else
    high(blocks_of(tiles, kTile, kTile));
}

bool term_serves(const GroupedTerm& term) {
  return term.x == nullptr || in_eights(term.inner, {term.x, term.w});
}
bool is_empty(const GroupedTiles& tiles) {
  return tiles.rows == 0 || tiles.columns == 0;
}

}  // namespace

bool tiles_serve(Type type, const GroupedTiles& tiles) {
  return type != Type::kFloat32 && in_eights(tiles.columns, {tiles.y}) &&
         term_serves(tiles.product) && term_serves(tiles.beside);
}

void launch_grouped_tiles(Type type, const GroupedTiles& tiles, Stream stream) {
  if (is_empty(tiles)) return;
  with_tiles(type, tiles.transposed, [&](auto* null, auto transposed) {
    using T = Element<decltype(null)>;
    constexpr bool kTransposed = decltype(transposed)::value;
    if (tiles.columns <= kFewColumns) {
      launch_with_memory(grouped_tiles<T, kTile, kFewColumns, kTransposed>,
                         blocks_of(tiles, kTile, kFewColumns), kThreads,
                         dense_bytes(kTile, kFewColumns), stream, tiles);
      return;
    }
    launch_height(
        tiles,
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles<T, kLowTile, kTile, kTransposed>, blocks, kThreads,
                             dense_bytes(kLowTile, kTile), stream, tiles);
        },
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles<T, kTile, kTile, kTransposed>, blocks, kThreads,
                             dense_bytes(kTile, kTile), stream, tiles);
        });
  });
}

void launch_grouped_tiles_4bit(Type type, const GroupedTiles& tiles, const FourBitView& w,
                               const FourBitTables& tables, Stream stream) {
  if (is_empty(tiles)) return;
  with_tiles(type, tiles.transposed, [&](auto* null, auto transposed) {
    using T = Element<decltype(null)>;
    constexpr bool kTransposed = decltype(transposed)::value;
    launch_height(
        tiles,
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles_4bit<T, kLowTile, kTile, kTransposed>, blocks, kThreads,
                             decoded_bytes(kLowTile, kTile), stream, tiles, w, tables);
        },
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles_4bit<T, kTile, kTile, kTransposed>, blocks, kThreads,
                             decoded_bytes(kTile, kTile), stream, tiles, w, tables);
        });
  });
}

void launch_grouped_tiles_8bit(Type type, const GroupedTiles& tiles, const EightBitView& w,
                               Stream stream) {
  if (is_empty(tiles)) return;
  with_tiles(type, tiles.transposed, [&](auto* null, auto transposed) {
    using T = Element<decltype(null)>;
    constexpr bool kTransposed = decltype(transposed)::value;
    launch_height(
        tiles,
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles_8bit<T, kLowTile, kTile, kTransposed>, blocks, kThreads,
                             decoded_bytes(kLowTile, kTile), stream, tiles, w);
        },
        [&](unsigned blocks) {
          launch_with_memory(grouped_tiles_8bit<T, kTile, kTile, kTransposed>, blocks, kThreads,
                             decoded_bytes(kTile, kTile), stream, tiles, w);
        });
  });
}

bool gradient_tiles_serve(Type type, const GroupedGradients& gradients) {
  return type != Type::kFloat32 && in_eights(gradients.n, {gradients.g}) &&
         in_eights(gradients.k, {gradients.x, gradients.out});
}

void launch_grouped_gradients(Type type, const GroupedGradients& gradients, Stream stream) {
  if (gradients.rows == 0 || gradients.n == 0 || gradients.k == 0) return;
  with_tiles(type, false, [&](auto* null, auto /*transposed*/) {
    using T = Element<decltype(null)>;
    const auto of = [&](auto height, auto width) {
      constexpr int kRows = decltype(height)::value, kColumns = decltype(width)::value;
      const dim3 grid(static_cast<unsigned>((gradients.k + kColumns - 1) / kColumns),
                      static_cast<unsigned>((gradients.n + kRows - 1) / kRows),
                      static_cast<unsigned>(gradients.experts));
      launch_with_memory(grouped_gradients<T, kRows, kColumns>, grid, kThreads,
                         dense_bytes(kRows, kColumns), stream, gradients);
    };
    using Few = std::integral_constant<int, kFewColumns>;
    using Many = std::integral_constant<int, kTile>;
    if (gradients.n <= kFewColumns)
      of(Few(), Many());
    else if (gradients.k <= kFewColumns)
      of(Many(), Few());
    else
      of(Many(), Many());
  });
}

const Provided kLaunchers[] = {{"grouped_tiles_serve", tiles_serve},
                               {"launch_grouped_tiles", launch_grouped_tiles},
                               {"launch_grouped_tiles_4bit", launch_grouped_tiles_4bit},
                               {"launch_grouped_tiles_8bit", launch_grouped_tiles_8bit},
                               {"gradient_tiles_serve", gradient_tiles_serve},
                               {"launch_grouped_gradients", launch_grouped_gradients}};

}  // namespace sftrun::kernels::cuda
