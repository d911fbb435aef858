#include "attention/attention_tiles.cuh"

// Forward pass of causal attention within packed documents, with spans that are seen both ways
// (FlashAttention-2, arXiv:2307.08691, algorithm 1). A block processes a tile of queries of one head
// and loops over all keys visible to any of them, with a running maximum and sum per query. Scores
// are in units of log2.
namespace sftrun::kernels::cuda {
namespace {

template <typename T, int kDepth>
using ForwardTiles = AttentionTiles<T, kDepth, 1, sizeof(T) == 2 && kDepth <= 256 ? 2 : 4>;

/// Phase 0 streams keys, phase 1 values.
struct ForwardOrder {
  static constexpr int kPhases = 2;
  __device__ static constexpr int matrix(int phase) { return phase; }
};

/// kHidden: masked scores have weight 0 whatever the maximum. kMin: initial maximum, finite.
constexpr float kHidden = -INFINITY, kMin = -1e30F;

/// A lane's online-softmax state: two queries per row tile.
template <typename P>
struct OnlineSoftmax {
  int first[P::kRowTiles][2];      // first visible key of the query
  float largest[P::kRowTiles][2];  // largest score so far
  float sum[P::kRowTiles][2];      // sum of exp2(score - largest) over this warp's columns

  template <typename Body>
  __device__ static __forceinline__ void for_rows(Body&& body) {
#pragma unroll
    for (int i = 0; i < P::kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) body(i, half);
  }
  __device__ OnlineSoftmax(const AttentionProblem& p, const AttentionBlock<P>& block, int query) {
    for_rows([&](int i, int half) {
      first[i][half] = first_key(p, query + block.row_of(i, 2 * half));
      largest[i][half] = kMin;
      sum[i][half] = 0;
    });
  }
};

/// Converts products to scores; masked ones become -inf.
/// @param query, key index of the tile's first row and column
template <bool kBothWays, typename P>
__device__ __forceinline__ void score(Scores<P>& scores, const AttentionProblem& p,
                                      const AttentionBlock<P>& block,
                                      const OnlineSoftmax<P>& softmax, const ScoreRule& rule,
                                      bool is_masked, int query, int key) {
  int last[P::kRowTiles][2];  // last visible key of each row, read once
  if constexpr (kBothWays) {
    if (is_masked) {
      OnlineSoftmax<P>::for_rows([&](int i, int half) {
        last[i][half] = last_key<true>(p, query + block.row_of(i, 2 * half));
      });
    }
  }
#pragma unroll
  for (int i = 0; i < P::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float slope;
        float& value = scores[i][j][e];
        value = rule.score<!P::kIsHalf>(value, slope);
        if (is_masked) {
          const int column = key + block.score_column(j, e);
          const bool is_seen = column >= softmax.first[i][e / 2] &&
                               column <= (kBothWays ? last[i][e / 2] : query + block.row_of(i, e));
          value = is_seen ? value : kHidden;
        }
      }
    }
  }
}

/// Largest score of each of the block's rows, over all warps.
template <typename P>
__device__ __forceinline__ void largest_scores(float (&largest)[P::kRowTiles][2],
                                               const Scores<P>& scores,
                                               const AttentionBlock<P>& block) {
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    float value = kHidden;
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j)
      value = fmaxf(value, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
    for (int offset = 2; offset > 0; offset /= 2)
      value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
    if (block.lane % 4 == 0)
      block.largests[block.column_warp * P::kRows + block.row_of(i, 2 * half)] = value;
  });
  __syncthreads();
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    float value = kHidden;
#pragma unroll
    for (int warp = 0; warp < P::kColumnWarps; ++warp)
      value = fmaxf(value, block.largests[warp * P::kRows + block.row_of(i, 2 * half)]);
    largest[i][half] = value;
  });
}

/// Converts scores to exp2(score - largest) and rescales the previous sums to the new maximum.
template <typename P>
__device__ __forceinline__ void advance(OnlineSoftmax<P>& softmax, ChannelSums<P>& sums,
                                        Scores<P>& scores, const AttentionBlock<P>& block) {
  float largest[P::kRowTiles][2], rescale[P::kRowTiles][2];
  largest_scores<P>(largest, scores, block);
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    const float top = fmaxf(softmax.largest[i][half], largest[i][half]);
    rescale[i][half] = exp2f(softmax.largest[i][half] - top);
    softmax.largest[i][half] = top;
    float total = softmax.sum[i][half] * rescale[i][half];
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        scores[i][j][e] = exp2f(scores[i][j][e] - top);
        total += scores[i][j][e];
      }
    }
    softmax.sum[i][half] = total;
  });
  sums.for_each([&](int, int i, int, int e, float& value) { value *= rescale[i][e / 2]; });
}

/// Reduces each query's sum over all lanes and warps.
template <typename P>
__device__ __forceinline__ void finish(OnlineSoftmax<P>& softmax, const AttentionBlock<P>& block) {
  __syncthreads();  // the maxima of the last tile have been read
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    const float sum = lanes_sum(softmax.sum[i][half], 4);
    if (block.lane % 4 == 0)
      block.largests[block.column_warp * P::kRows + block.row_of(i, 2 * half)] = sum;
  });
  __syncthreads();
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < P::kColumnWarps; ++warp)
      sum += block.largests[warp * P::kRows + block.row_of(i, 2 * half)];
    softmax.sum[i][half] = sum;
  });
}

/// One block per head and tile of queries; the last tiles, with the most keys, start first.
template <typename T, int kDepth, bool kBothWays>
__global__ void __launch_bounds__(ForwardTiles<T, kDepth>::kThreads, 1)
    attention_forward(const __grid_constant__ AttentionProblem p, T* out, float* lse,
                      bool are_in_pieces) {
  using P = ForwardTiles<T, kDepth>;
  const AttentionBlock<P> block;
  const auto head = static_cast<int>(blockIdx.x), tokens = static_cast<int>(p.tokens),
             kv_head = head / static_cast<int>(p.heads / p.kv_heads),
             query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * P::kRows,
             depth = static_cast<int>(p.depth), chunks = chunks_of<P>(depth);
  int keys_end = query < tokens - P::kRows ? query + P::kRows : tokens;  // of the rows
  if constexpr (kBothWays) keys_end = last_key<true>(p, keys_end - 1) + 1;
  const int first_of_last = first_key(p, query + P::kRows - 1),
            last_of_first = last_key<kBothWays>(p, query),
            begin = first_key(p, query) / P::kColumns * P::kColumns;
  const auto queries = head_matrix<T>(p, p.q, p.q_stride, head, are_in_pieces),
             keys = head_matrix<T>(p, p.k, p.k_stride, kv_head, are_in_pieces),
             values = head_matrix<T>(p, p.v, p.v_stride, kv_head, are_in_pieces);
  load_rows<P::kRows, P::kDepth, P::kThreads>(block.kept, P::kKeptLead, queries, query, 0);
  ChunkFeed<P, ForwardOrder> feed(block.stages, keys, values, 0, begin, keys_end, 1);
  OnlineSoftmax<P> softmax(p, block, query);
  const ScoreRule rule(p);
  ChannelSums<P> sums;
  for (int key = begin; key < keys_end; key += P::kColumns) {
    Scores<P> scores;
    take_scores<P>(scores, block, block.kept, feed, chunks);
    const bool is_masked = key + P::kColumns - 1 > last_of_first || key < first_of_last;
    score<kBothWays, P>(scores, p, block, softmax, rule, is_masked, query, key);
    advance<P>(softmax, sums, scores, block);
    write_square<P>(block, scores);
    add_square<P>(sums, block, feed, chunks);
  }
  finish<P>(softmax, block);
  write_sums<P>(block.kept, block, sums,
                [&](int i, int half) { return 1.0F / softmax.sum[i][half]; });
  OnlineSoftmax<P>::for_rows([&](int i, int half) {
    const int row = query + block.row_of(i, 2 * half);
    if (row < tokens && block.column_warp == 0 && block.lane % 4 == 0)
      lse[head * p.tokens + row] = softmax.largest[i][half] * kLn2 + logf(softmax.sum[i][half]);
  });
  __syncthreads();
  store_rows<P::kRows, P::kThreads>(out + head * depth, p.heads * p.depth, block.kept, P::kKeptLead,
                                    query, queries);
}

}  // namespace

void launch_attention_forward(Type type, const AttentionProblem& problem, void* out, float* lse,
                              Stream stream) {
  if (problem.tokens == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    for_kernel(problem, [&](auto depth, auto both_ways) {
      constexpr int kDepth = decltype(depth)::value;
      constexpr bool kBothWays = decltype(both_ways)::value;
      using P = ForwardTiles<T, kDepth>;
      const dim3 grid(static_cast<unsigned>(problem.heads),
                      static_cast<unsigned>((problem.tokens + P::kRows - 1) / P::kRows));
      launch_with_memory(attention_forward<T, kDepth, kBothWays>, grid, P::kThreads, P::kBytes,
                         stream, problem, static_cast<T*>(out), lse,
                         in_pieces(type, problem, {out}));
    });
  });
}

const Provided kLaunchers[] = {{"launch_attention_forward", launch_attention_forward}};

}  // namespace sftrun::kernels::cuda
