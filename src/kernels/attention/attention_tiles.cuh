#pragma once

#include <climits>

#include "attention/attention_launch.h"
#include "cuda/tensor_cores.cuh"

/// Shared code of the attention kernels. A block keeps some rows of one head in shared memory
/// ("kept"; queries in the forward pass) and loops over the rows of other matrices ("streamed"),
/// which are loaded kColumns rows by kChunk channels at a time. There are two kinds of products:
///     scores [kRows, kColumns] = kept streamed^T         over the chunks of channels
///     sums [kRows, channels] += square streamed          chunk by chunk of channels
/// where "square" is the matrix computed from the scores. Tiles cover the whole batch and ignore
/// document boundaries; `first_key` and `last_key` give the visible keys of each query. kBothWays:
/// there are `key_ends`.
namespace sftrun::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;
inline constexpr int kAttentionChunk = 64;  // channels

/// Tile sizes of a kernel. Shared memory is limited to the 99 KiB per block of sm_86, sm_89 and
/// sm_120; in fp32, tiles have half the rows and columns.
template <typename Element, int kMaxDepth, int kKeptMatrices, int kWarpsOfColumns>
struct AttentionTiles {
  using T = Element;
  static constexpr bool kIsHalf = sizeof(T) == 2;
  static constexpr int kDepth = kMaxDepth, kKept = kKeptMatrices;
  static constexpr int kRowTiles = kIsHalf ? 2 : 1;  // of 16 rows, per warp
  static constexpr int kRowWarps = kDepth > 256 && kKept == 2 ? 1 : 2;
  static constexpr int kColumnWarps = kWarpsOfColumns;
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kRowWarps;
  static constexpr int kColumns = kIsHalf ? 64 : 32;
  static constexpr int kChunk = kAttentionChunk, kChunks = kDepth / kChunk;
  /// Per warp, of 8 columns each.
  static constexpr int kScoreTiles = kColumns / 8 / kColumnWarps,
                       kChannelTiles = kChunk / 8 / kColumnWarps;
  /// Elements in 16 bytes. Row strides are padded by this, which avoids bank conflicts.
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
  static constexpr int kKeptLead = kDepth + kPiece, kChunkLead = kChunk + kPiece,
                       kSquareLead = kColumns + kPiece;
  static constexpr int kKeptSize = kRows * kKeptLead, kStageSize = kColumns * kChunkLead,
                       kSquareSize = kRows * kSquareLead;
  static constexpr int kLargestsBytes = kColumnWarps * kRows * 4;
  static constexpr int bytes(int stages) {
    return (kKept * kKeptSize + stages * kStageSize + kSquareSize) * static_cast<int>(sizeof(T)) +
           kLargestsBytes;
  }
  static constexpr int kMaxBytes = 99 * 1024;
  static constexpr int kStages = bytes(3) <= kMaxBytes ? 3 : 2;
  static constexpr int kBytes = bytes(kStages);
  static_assert(kBytes <= kMaxBytes && kScoreTiles > 0 && kChannelTiles > 0);
  static_assert(!kIsHalf || (kScoreTiles % 2 == 0 && kChannelTiles % 2 == 0));
};

/// A warp's results: kRowTiles x kTiles tiles of [16, 8], four values of each per lane.
template <int kRowTiles, int kTiles>
using WarpSums = float[kRowTiles][kTiles][4];

/// A block's shared memory, and the position of this thread's warp and lane in a tile.
template <typename P>
struct AttentionBlock {
  using T = typename P::T;
  T* kept;                     // [kKept][kRows][kKeptLead]
  T* stages;                   // [kStages][kColumns][kChunkLead]
  T* square;                   // [kRows][kSquareLead]
  float* largests;             // [kColumnWarps][kRows]
  int row, column_warp, lane;  // row: first row of the warp

  __device__ AttentionBlock() {
    kept = reinterpret_cast<T*>(dynamic_shared_memory());
    stages = kept + P::kKept * P::kKeptSize;
    square = stages + P::kStages * P::kStageSize;
    largests = reinterpret_cast<float*>(square + P::kSquareSize);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    row = warp / P::kColumnWarps * P::kWarpRows;
    column_warp = warp % P::kColumnWarps;
    lane = thread % 32;
  }
  /// Row, within the block's rows, of value e of row tile i; column or channel, within those that
  /// the block's warps divide among them, of value e of tile j.
  __device__ int row_of(int i, int e) const { return row + 16 * i + lane / 4 + e / 2 * 8; }
  __device__ int score_column(int j, int e) const {
    return (column_warp * P::kScoreTiles + j) * 8 + lane % 4 * 2 + e % 2;
  }
  __device__ int channel(int j, int e) const {
    return (column_warp * P::kChannelTiles + j) * 8 + lane % 4 * 2 + e % 2;
  }
};

// ---- Memory.

/// Rows [0, rows) and channels [0, depth) of a head, row stride `stride`; zero outside.
template <typename T>
struct HeadMatrix {
  const T* data;
  int stride, rows, depth;
  bool in_pieces;  // rows begin and end at multiples of 16 bytes

  __device__ __forceinline__ bool holds(int row, int channel) const {
    return row < rows && channel < depth;
  }
  __device__ __forceinline__ const T* at(int row, int channel) const {
    return data + static_cast<int64_t>(row) * stride + channel;
  }
};

/// tile[r * lead + c] = matrix(row + r, channel + c); asynchronous if matrix.in_pieces.
template <int kRows, int kChannels, int kThreads, typename T>
__device__ __forceinline__ void load_rows(T* tile, int lead, const HeadMatrix<T>& matrix, int row,
                                          int channel) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T)), kPieces = kChannels / kPiece,
                kRowsAtOnce = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0);
  const auto thread = static_cast<int>(threadIdx.x);
  if (matrix.in_pieces) {
    const int c = thread % kPieces * kPiece;
#pragma unroll 2
    for (int r = thread / kPieces; r < kRows; r += kRowsAtOnce) {
      const bool is_there = matrix.holds(row + r, channel + c);
      copy_async(tile + r * lead + c, is_there ? matrix.at(row + r, channel + c) : matrix.data,
                 is_there);
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < kRows * kChannels; i += kThreads) {
    const int r = i / kChannels, c = i % kChannels;
    const bool is_there = matrix.holds(row + r, channel + c);
    store(tile + r * lead + c, is_there ? load(matrix.at(row + r, channel + c)) : 0.0F);
  }
}

/// Stores the rows of a tile to `out`, which has the rows and channels of `matrix` and its own row
/// stride.
template <int kRows, int kThreads, typename T>
__device__ __forceinline__ void store_rows(T* out, int64_t stride, const T* tile, int lead, int row,
                                           const HeadMatrix<T>& matrix) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
  const int width = matrix.in_pieces ? kPiece : 1, pieces = matrix.depth / width;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * pieces; i += kThreads) {
    const int r = i / pieces, c = i % pieces * width;
    if (row + r >= matrix.rows) break;
    const T* from = tile + r * lead + c;
    T* to = out + (row + r) * stride + c;
    if (matrix.in_pieces)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else
      *to = *from;
  }
}

/// Loads the chunks of two streamed matrices in the order of use: for each head, tile of rows and
/// phase, all chunks of channels. Chunks are loaded while earlier ones are used.
/// Order::matrix(phase) is 0 or 1.
template <typename P, typename Order>
class ChunkFeed {
 public:
  using T = typename P::T;
  /// @param first, second matrices with the same rows and channels
  /// @param head_step elements from one head to the next
  /// @param begin, end range of rows
  __device__ ChunkFeed(T* stages, const HeadMatrix<T>& first, const HeadMatrix<T>& second,
                       int head_step, int begin, int end, int heads)
      : stages_(stages),
        first_(first),
        second_(second.data),
        second_stride_(second.stride),
        head_step_(head_step),
        begin_(begin),
        end_(end),
        row_(begin),
        heads_left_(begin < end ? heads : 0),
        chunks_((first.depth + P::kChunk - 1) / P::kChunk) {
    for (int i = 0; i < P::kStages - 1; ++i) issue();
  }
  /// The next chunk, valid until the next call. All threads of the block must call it. It is a
  /// barrier: shared memory written before is visible to all threads afterwards.
  __device__ __forceinline__ const T* take() {
    wait_for_copies<P::kStages - 2>();
    __syncthreads();
    issue();
    const T* chunk = stages_ + taken_ * P::kStageSize;
    taken_ = taken_ + 1 == P::kStages ? 0 : taken_ + 1;
    return chunk;
  }

 private:
  __device__ __forceinline__ void issue() {
    if (heads_left_ > 0) {
      HeadMatrix<T> matrix = first_;
      if (Order::matrix(phase_) != 0) matrix.data = second_, matrix.stride = second_stride_;
      load_rows<P::kColumns, P::kChunk, P::kThreads>(
          stages_ + issued_ * P::kStageSize, P::kChunkLead, matrix, row_, chunk_ * P::kChunk);
      advance();
    }
    end_copies();
    issued_ = issued_ + 1 == P::kStages ? 0 : issued_ + 1;
  }
  __device__ __forceinline__ void advance() {
    if (++chunk_ < chunks_) return;
    chunk_ = 0;
    if (++phase_ < Order::kPhases) return;
    phase_ = 0;
    if ((row_ += P::kColumns) < end_) return;
    row_ = begin_;
    first_.data += head_step_, second_ += head_step_;
    --heads_left_;
  }

  T* stages_;
  HeadMatrix<T> first_;
  const T* second_;
  int second_stride_, head_step_, begin_, end_, row_, heads_left_, chunks_, phase_ = 0, chunk_ = 0,
                                                                            issued_ = 0, taken_ = 0;
};

// ---- Products of a warp.

/// sums += left right^T for left [16 kRowTiles, kInner] and right [8 kTiles, kInner].
template <int kInner, int kRowTiles, int kTiles, typename T>
__device__ __forceinline__ void multiply_nt(WarpSums<kRowTiles, kTiles>& sums, const T* left,
                                            int left_lead, const T* right, int right_lead,
                                            int lane) {
  if constexpr (sizeof(T) == 2) {
    const T* of_left = left + lane % 16 * left_lead + lane / 16 * 8;
    const T* of_right = right + (lane / 16 * 8 + lane % 8) * right_lead + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kInner; k += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_matrices<false>(a[i], of_left + 16 * i * left_lead + k);
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        uint32_t b[4];
        load_matrices<false>(b, of_right + 8 * j * right_lead + k);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_add<T>(sums[i][j], a[i], b[0], b[1]);
          multiply_add<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  } else {
    const T* of_left = left + lane / 4 * left_lead;
    const T* of_right = right + lane % 4 * 2 * right_lead;
#pragma unroll 2
    for (int k = 0; k < kInner; k += 4) {
      float a[kRowTiles][2][4];
      for (int i = 0; i < kRowTiles; ++i) {
        load_four(of_left + 16 * i * left_lead + k, a[i][0]);
        load_four(of_left + (16 * i + 8) * left_lead + k, a[i][1]);
      }
      for (int j = 0; j < kTiles; ++j) {
        for (int e = 0; e < 4; ++e) {
          float b[4];
          load_four(of_right + (8 * j + e % 2) * right_lead + k, b);
          for (int i = 0; i < kRowTiles; ++i)
            for (int n = 0; n < 4; ++n) sums[i][j][e] = fmaf(a[i][e / 2][n], b[n], sums[i][j][e]);
        }
      }
    }
  }
}

/// sums += left right for left [16 kRowTiles, kInner] and right [kInner, 8 kTiles].
template <int kInner, int kRowTiles, int kTiles, typename T>
__device__ __forceinline__ void multiply_nn(WarpSums<kRowTiles, kTiles>& sums, const T* left,
                                            int left_lead, const T* right, int right_lead,
                                            int lane) {
  if constexpr (sizeof(T) == 2) {
    const T* of_left = left + lane % 16 * left_lead + lane / 16 * 8;
    const T* of_right = right + lane % 16 * right_lead + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kInner; k += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_matrices<false>(a[i], of_left + 16 * i * left_lead + k);
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        uint32_t b[4];
        load_matrices<true>(b, of_right + k * right_lead + 8 * j);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_add<T>(sums[i][j], a[i], b[0], b[1]);
          multiply_add<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  } else {
    const T* of_left = left + lane / 4 * left_lead;
    const T* of_right = right + lane % 4 * 2;
#pragma unroll 2
    for (int k = 0; k < kInner; k += 4) {
      float a[kRowTiles][2][4];
      for (int i = 0; i < kRowTiles; ++i) {
        load_four(of_left + 16 * i * left_lead + k, a[i][0]);
        load_four(of_left + (16 * i + 8) * left_lead + k, a[i][1]);
      }
      for (int n = 0; n < 4; ++n) {
        for (int j = 0; j < kTiles; ++j) {
          const float2 b =
              *reinterpret_cast<const float2*>(of_right + (k + n) * right_lead + 8 * j);
          for (int i = 0; i < kRowTiles; ++i) {
            for (int e = 0; e < 4; ++e)
              sums[i][j][e] = fmaf(a[i][e / 2][n], e % 2 == 0 ? b.x : b.y, sums[i][j][e]);
          }
        }
      }
    }
  }
}

// ---- Products of a block.

template <typename P>
using Scores = WarpSums<P::kRowTiles, P::kScoreTiles>;
template <typename P>
struct ChannelSums {
  WarpSums<P::kRowTiles, P::kChannelTiles> of_chunk[P::kChunks] = {};

  template <typename Body>
  __device__ __forceinline__ void for_each(Body&& body) {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < P::kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < P::kChannelTiles; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) body(c, i, j, e, of_chunk[c][i][j][e]);
        }
      }
    }
  }
};

template <typename P>
__device__ __forceinline__ int chunks_of(int depth) {
  return (depth + P::kChunk - 1) / P::kChunk;
}

/// scores = kept streamed^T in the next phase.   @param kept one of the kept matrices
template <typename P, typename Feed>
__device__ __forceinline__ void take_scores(Scores<P>& scores, const AttentionBlock<P>& block,
                                            const typename P::T* kept, Feed& feed, int chunks) {
#pragma unroll
  for (int i = 0; i < P::kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][j][e] = 0;
  const typename P::T* left = kept + block.row * P::kKeptLead;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const auto* chunk = feed.take() + block.column_warp * P::kScoreTiles * 8 * P::kChunkLead;
    multiply_nt<P::kChunk, P::kRowTiles, P::kScoreTiles>(scores, left + c * P::kChunk, P::kKeptLead,
                                                         chunk, P::kChunkLead, block.lane);
  }
}

/// sums += square streamed in the next phase.
template <typename P, typename Feed>
__device__ __forceinline__ void add_square(ChannelSums<P>& sums, const AttentionBlock<P>& block,
                                           Feed& feed, int chunks) {
  const typename P::T* left = block.square + block.row * P::kSquareLead;
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    if (c >= chunks) break;
    const auto* chunk = feed.take() + block.column_warp * P::kChannelTiles * 8;
    multiply_nn<P::kColumns, P::kRowTiles, P::kChannelTiles>(sums.of_chunk[c], left, P::kSquareLead,
                                                             chunk, P::kChunkLead, block.lane);
  }
}

/// Stores two consecutive values of a row.
__device__ __forceinline__ void store_two(float* p, float first, float second) {
  *reinterpret_cast<float2*>(p) = make_float2(first, second);
}
__device__ __forceinline__ void store_two(__nv_bfloat16* p, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(p) = __floats2bfloat162_rn(first, second);
}
__device__ __forceinline__ void store_two(__half* p, float first, float second) {
  *reinterpret_cast<__half2*>(p) = __floats2half2_rn(first, second);
}

template <typename P>
__device__ __forceinline__ void write_square(const AttentionBlock<P>& block,
                                             const Scores<P>& values) {
#pragma unroll
  for (int i = 0; i < P::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        store_two(block.square + block.row_of(i, e) * P::kSquareLead + block.score_column(j, e),
                  values[i][j][e], values[i][j][e + 1]);
      }
    }
  }
}

/// Writes the sums times factor(row tile, half) to `tile`, which has the layout of a kept matrix.
/// All threads must call it, and none may still read the tile.
template <typename P, typename Factor>
__device__ __forceinline__ void write_sums(typename P::T* tile, const AttentionBlock<P>& block,
                                           const ChannelSums<P>& sums, const Factor& factor) {
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < P::kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < P::kChannelTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const float by = factor(i, e / 2);
          const auto& values = sums.of_chunk[c][i][j];
          store_two(tile + block.row_of(i, e) * P::kKeptLead + c * P::kChunk + block.channel(j, e),
                    values[e] * by, values[e + 1] * by);
        }
      }
    }
  }
}

// ---- Scores and masks.

/// tanh with an absolute error of about 1e-7, sufficient for cap * tanh(score / cap).
__device__ __forceinline__ float tanh_of(float x) {
  return 1.0F - __fdividef(2.0F, 1.0F + exp2f(2 * kLog2E * x));
}

/// Computes a score from the product of query and key, and the derivative of its soft cap.
struct ScoreRule {
  float scale, cap, scale_by_cap, scale_log2, cap_log2;

  __device__ explicit ScoreRule(const AttentionProblem& p)
      : scale(p.scale),
        cap(p.softcap),
        scale_by_cap(p.softcap > 0 ? p.scale / p.softcap : 0.0F),
        scale_log2(p.scale * kLog2E),
        cap_log2(p.softcap * kLog2E) {}
  /// The score in units of log2.
  template <bool kExact>
  __device__ __forceinline__ float score(float product, float& slope) const {
    if (cap <= 0) {
      slope = 1;
      return product * scale_log2;
    }
    const float x = product * scale_by_cap, t = kExact ? tanhf(x) : tanh_of(x);
    slope = 1.0F - t * t;
    return t * cap_log2;
  }
};

/// First token of a document, and the end of its token range.
struct Document {
  int begin, end;
};
__device__ __forceinline__ Document document_of(const AttentionProblem& p, int token) {
  auto low = 0, high = static_cast<int>(p.documents) +
                       1;  // the first boundary beyond the token is in [low, high]
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (p.cu_seqlens[middle] > token)
      high = middle;
    else
      low = middle + 1;
  }
  return {low > 0 ? p.cu_seqlens[low - 1] : 0,
          low <= p.documents ? p.cu_seqlens[low] : static_cast<int>(p.tokens)};
}

/// First key visible to a query; INT_MAX for a query out of range.
__device__ __forceinline__ int first_key(const AttentionProblem& p, int query) {
  if (query >= p.tokens) return INT_MAX;
  const int begin = document_of(p, query).begin;
  const int64_t of_window = query - p.window + 1;
  return p.window > 0 && of_window > begin ? static_cast<int>(of_window) : begin;
}

/// Last key visible to a query; less than its first one for a query out of range.
template <bool kBothWays>
__device__ __forceinline__ int last_key(const AttentionProblem& p, int query) {
  if constexpr (kBothWays)
    return query < p.tokens ? p.key_ends[query] - 1 : -1;
  else
    return query;
}

/// First query that sees a key: the key's own row, or the first one of its span.
template <bool kBothWays>
__device__ __forceinline__ int first_query(const AttentionProblem& p, int key) {
  int first = key;
  if constexpr (kBothWays) {
    int low = 0;  // key_ends is ascending, and that of `first` is greater than `key`
    while (low < first) {
      const int middle = low + (first - low) / 2;
      if (p.key_ends[middle] > key)
        first = middle;
      else
        low = middle + 1;
    }
  }
  return first;
}

/// Calls body(depth class as a type, kBothWays as a type) with the smallest class >= depth.
template <typename Body>
void for_kernel(const AttentionProblem& problem, Body&& body) {
  const auto for_depth = [&](auto both_ways) {
    if (problem.depth <= 128)
      body(std::integral_constant<int, 128>(), both_ways);
    else if (problem.depth <= kMaxDepthBothWays)
      body(std::integral_constant<int, static_cast<int>(kMaxDepthBothWays)>(), both_ways);
    else
      body(std::integral_constant<int, 512>(), std::false_type());
  };
  if (problem.key_ends != nullptr)
    for_depth(std::true_type());
  else
    for_depth(std::false_type());
}

/// The channels of one head of a matrix.
template <typename T>
__device__ __forceinline__ HeadMatrix<T> head_matrix(const AttentionProblem& p, const void* data,
                                                     int64_t stride, int head, bool in_pieces) {
  const auto depth = static_cast<int>(p.depth);
  return {static_cast<const T*>(data) + head * depth, static_cast<int>(stride),
          static_cast<int>(p.tokens), depth, in_pieces};
}

/// Whether the rows of every head begin and end at multiples of 16 bytes.
/// @param others contiguous tensors, like out
inline bool in_pieces(Type type, const AttentionProblem& p,
                      std::initializer_list<const void*> others) {
  const int64_t piece = type == Type::kFloat32 ? 4 : 8;
  for (const int64_t elements : {p.depth, p.q_stride, p.k_stride, p.v_stride})
    if (elements % piece != 0) return false;
  return in_eights(0, {p.q, p.k, p.v}) && in_eights(0, others);
}

}  // namespace sftrun::kernels::cuda
