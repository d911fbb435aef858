#include "attention/attention_tiles.cuh"

// Backward pass of attention (FlashAttention-2, arXiv:2307.08691, algorithm 2). Each gradient is
// summed by one block in a fixed order. With p = exp(score - lse), dp = d_out v^T and
// ds = p (dp - delta) slope:
//     dq = scale ds k        q and d_out kept in shared memory; k and v streamed
//     dk = scale ds^T q      k and v kept; q and d_out streamed, for all heads that share the keys
//     dv = p^T d_out         the same
// For heads of more than 256 channels the accumulators of dk and dv do not fit at once, so these
// are two kernels.
namespace sftrun::kernels::cuda {
namespace {

/// The roles of the kernels. Phases: scores, then dp, then the sums; matrix(phase) is 0 or 1, the
/// index of the streamed matrix.
struct OfQueries {
  static constexpr bool kRowsAreQueries = true, kSumsP = false, kSumsDs = true;
  static constexpr int kPhases = 3;
  __device__ static constexpr int matrix(int phase) { return phase % 2; }
};
struct OfKeys : OfQueries {
  static constexpr bool kRowsAreQueries = false;
};
struct OfValues {
  static constexpr bool kRowsAreQueries = false, kSumsP = true, kSumsDs = false;
  static constexpr int kPhases = 2;
  __device__ static constexpr int matrix(int phase) { return phase; }
};
struct OfKeysAndValues {
  static constexpr bool kRowsAreQueries = false, kSumsP = true, kSumsDs = true;
  static constexpr int kPhases = 4;
  __device__ static constexpr int matrix(int phase) { return phase == 1 || phase == 2 ? 1 : 0; }
};

template <typename Role, typename T, int kDepth>
using GradientTiles = AttentionTiles<T, kDepth, Role::kSumsDs ? 2 : 1, 4>;

/// The part of the score matrix that a block computes.
struct GradientWork {
  int row, begin, end;  // first row of the block; range of streamed rows
  int head, kv_head;    // head: first of `heads` query heads
  int heads;
};
template <typename Role, bool kBothWays, typename P>
__device__ __forceinline__ GradientWork gradient_work(const AttentionProblem& p) {
  GradientWork work{};
  const auto group = static_cast<int>(p.heads / p.kv_heads), tokens = static_cast<int>(p.tokens),
             block = static_cast<int>(blockIdx.x);
  if constexpr (Role::kRowsAreQueries) {
    // The last queries, which have the most keys, start first; so do the first keys.
    work.row = static_cast<int>(gridDim.y - 1 - blockIdx.y) * P::kRows;
    work.begin = first_key(p, work.row);
    work.end = work.row < tokens - P::kRows ? work.row + P::kRows : tokens;
    if constexpr (kBothWays) work.end = last_key<true>(p, work.end - 1) + 1;
    work.head = block, work.kv_head = block / group, work.heads = 1;
  } else {
    work.row = static_cast<int>(blockIdx.y) * P::kRows;
    const int last = (work.row < tokens - P::kRows ? work.row + P::kRows : tokens) - 1;
    const int end = document_of(p, last).end;
    work.begin = first_query<kBothWays>(p, work.row);
    work.end = p.window > 0 && p.window < end - last ? last + static_cast<int>(p.window) : end;
    work.kv_head = block, work.head = block * group, work.heads = group;
  }
  work.begin = work.begin / P::kColumns * P::kColumns;
  return work;
}

/// Per-query values.
struct Query {
  float lse, delta;  // lse in units of log2
  int first;         // first visible key
};
__device__ __forceinline__ Query query_at(const AttentionProblem& p, const AttentionGradient& g,
                                          int head, int query) {
  if (query >= p.tokens) return {0, 0, INT_MAX};
  const int64_t at = head * p.tokens + query;
  return {g.lse[at] * kLog2E, g.delta[at], g.first_key[query]};
}

/// The queries of a lane's values: two per row tile, or two per column tile.
template <typename Role, typename P>
struct Queries {
  static constexpr int kPairs = Role::kRowsAreQueries ? P::kRowTiles : P::kScoreTiles;
  Query queries[kPairs][2];

  /// @param first index of the tile's first query
  __device__ __forceinline__ void read(const AttentionProblem& p, const AttentionGradient& g,
                                       const AttentionBlock<P>& block, int head, int first) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int at = Role::kRowsAreQueries ? block.row_of(i, 2 * n) : block.score_column(i, n);
        queries[i][n] = query_at(p, g, head, first + at);
      }
    }
  }
  __device__ __forceinline__ const Query& at(int i, int j, int e) const {
    if constexpr (Role::kRowsAreQueries)
      return queries[i][e / 2];
    else
      return queries[j][e % 2];
  }
};

/// Converts products to p, and dp to ds if needed.
/// @param row, column index in the batch of the tile's first row and column
template <typename Role, bool kBothWays, typename P>
__device__ __forceinline__ void differentiate(
    Scores<P>& scores, Scores<P>& dp, const AttentionProblem& p, const AttentionBlock<P>& block,
    const Queries<Role, P>& queries, const ScoreRule& rule, bool is_masked, int row, int column) {
#pragma unroll
  for (int i = 0; i < P::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < P::kScoreTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Query& query = queries.at(i, j, e);
        float slope;
        float probability = exp2f(rule.score<!P::kIsHalf>(scores[i][j][e], slope) - query.lse);
        if (is_masked) {
          const int of_row = row + block.row_of(i, e),
                    of_column = column + block.score_column(j, e);
          const int key = Role::kRowsAreQueries ? of_column : of_row,
                    of_query = Role::kRowsAreQueries ? of_row : of_column,
                    last = last_key<kBothWays>(p, of_query);
          probability = key >= query.first && key <= last ? probability : 0.0F;
        }
        scores[i][j][e] = probability;
        if constexpr (Role::kSumsDs)
          dp[i][j][e] =
              probability == 0.0F ? 0.0F : probability * (dp[i][j][e] - query.delta) * slope;
      }
    }
  }
}

/// Whether any key of the tile is hidden from any of its queries.
template <typename Role, bool kBothWays, typename P>
__device__ __forceinline__ bool is_masked(const AttentionProblem& p, const AttentionGradient& g,
                                          int row, int column) {
  const int query = Role::kRowsAreQueries ? row : column,
            key = Role::kRowsAreQueries ? column : row;
  constexpr int kQueries = Role::kRowsAreQueries ? P::kRows : P::kColumns,
                kKeys = Role::kRowsAreQueries ? P::kColumns : P::kRows;
  const int last_query = query + kQueries - 1, last_of_first = last_key<kBothWays>(p, query);
  return key + kKeys - 1 > last_of_first || last_query >= p.tokens || key < g.first_key[last_query];
}

template <typename T>
struct GradientMatrices {
  HeadMatrix<T> q, d_out, k, v;
};
template <typename T>
__device__ __forceinline__ GradientMatrices<T> matrices_of(const AttentionProblem& p,
                                                           const AttentionGradient& g,
                                                           const GradientWork& work,
                                                           bool are_in_pieces) {
  return {head_matrix<T>(p, p.q, p.q_stride, work.head, are_in_pieces),
          head_matrix<T>(p, g.d_out, p.heads * p.depth, work.head, are_in_pieces),
          head_matrix<T>(p, p.k, p.k_stride, work.kv_head, are_in_pieces),
          head_matrix<T>(p, p.v, p.v_stride, work.kv_head, are_in_pieces)};
}

/// One block per head (of queries, or of keys and values) and tile of its rows.
template <typename Role, typename T, int kDepth, bool kBothWays>
__global__ void __launch_bounds__(GradientTiles<Role, T, kDepth>::kThreads, 1)
    attention_gradient(const __grid_constant__ AttentionProblem p,
                       const __grid_constant__ AttentionGradient g, bool are_in_pieces) {
  using P = GradientTiles<Role, T, kDepth>;
  const AttentionBlock<P> block;
  const GradientWork work = gradient_work<Role, kBothWays, P>(p);
  const GradientMatrices<T> matrices = matrices_of<T>(p, g, work, are_in_pieces);
  const HeadMatrix<T>& first_kept = Role::kRowsAreQueries ? matrices.q : matrices.k;
  T* second_tile = block.kept + P::kKeptSize;
  load_rows<P::kRows, P::kDepth, P::kThreads>(block.kept, P::kKeptLead, first_kept, work.row, 0);
  if constexpr (Role::kSumsDs) {
    load_rows<P::kRows, P::kDepth, P::kThreads>(second_tile, P::kKeptLead,
                                                Role::kRowsAreQueries ? matrices.d_out : matrices.v,
                                                work.row, 0);
  }
  const int step = Role::kRowsAreQueries ? 0 : static_cast<int>(p.depth);
  ChunkFeed<P, Role> feed(block.stages, Role::kRowsAreQueries ? matrices.k : matrices.q,
                          Role::kRowsAreQueries ? matrices.v : matrices.d_out, step, work.begin,
                          work.end, work.heads);
  const int chunks = chunks_of<P>(static_cast<int>(p.depth));
  const ScoreRule rule(p);
  ChannelSums<P> of_p, of_ds;
  Queries<Role, P> queries;
  if constexpr (Role::kRowsAreQueries) queries.read(p, g, block, work.head, work.row);
  for (int head = 0; head < work.heads; ++head) {
    for (int column = work.begin; column < work.end; column += P::kColumns) {
      if constexpr (!Role::kRowsAreQueries) queries.read(p, g, block, work.head + head, column);
      Scores<P> scores, dp;
      take_scores<P>(scores, block, block.kept, feed, chunks);
      if constexpr (Role::kSumsDs) take_scores<P>(dp, block, second_tile, feed, chunks);
      differentiate<Role, kBothWays, P>(scores, dp, p, block, queries, rule,
                                        is_masked<Role, kBothWays, P>(p, g, work.row, column),
                                        work.row, column);
      if constexpr (Role::kSumsP) {
        write_square<P>(block, scores);
        add_square<P>(of_p, block, feed, chunks);
      }
      if constexpr (Role::kSumsP && Role::kSumsDs) __syncthreads();  // p has been read
      if constexpr (Role::kSumsDs) {
        write_square<P>(block, dp);
        add_square<P>(of_ds, block, feed, chunks);
      }
    }
  }
  __syncthreads();
  // The sums overwrite the kept matrices: those of ds the first one, those of p the last one.
  T* tile_of_p = Role::kSumsDs ? second_tile : block.kept;
  if constexpr (Role::kSumsDs)
    write_sums<P>(block.kept, block, of_ds, [&](int, int) { return p.scale; });
  if constexpr (Role::kSumsP) write_sums<P>(tile_of_p, block, of_p, [](int, int) { return 1.0F; });
  __syncthreads();
  const int64_t heads = Role::kRowsAreQueries ? p.heads : p.kv_heads, stride = heads * p.depth,
                to = (Role::kRowsAreQueries ? work.head : work.kv_head) * p.depth;
  if constexpr (Role::kSumsDs) {
    T* out = static_cast<T*>(Role::kRowsAreQueries ? g.dq : g.dk) + to;
    store_rows<P::kRows, P::kThreads>(out, stride, block.kept, P::kKeptLead, work.row, first_kept);
  }
  if constexpr (Role::kSumsP) {
    T* out = static_cast<T*>(g.dv) + to;
    store_rows<P::kRows, P::kThreads>(out, stride, tile_of_p, P::kKeptLead, work.row, matrices.v);
  }
}

/// delta = sum over a head's channels of d_out * out, one warp per token and head; and the first
/// visible key of each query.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    attention_delta(const __grid_constant__ AttentionProblem p,
                    const __grid_constant__ AttentionGradient g) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at >= p.tokens * p.heads) return;
  const int64_t token = at / p.heads, head = at % p.heads;
  const T* d_out = static_cast<const T*>(g.d_out) + at * p.depth;
  const T* out = static_cast<const T*>(g.out) + at * p.depth;
  float sum = 0;
  for (int64_t c = lane * kWidth; c < p.depth; c += 32 * kWidth) {
    float a[kWidth], b[kWidth];
    load_values<kWidth>(d_out + c, a);
    load_values<kWidth>(out + c, b);
    for (int i = 0; i < kWidth; ++i) sum = fmaf(a[i], b[i], sum);
  }
  sum = lanes_sum(sum, 32);
  if (lane != 0) return;
  g.delta[head * p.tokens + token] = sum;
  if (head == 0) g.first_key[token] = first_key(p, static_cast<int>(token));
}

template <typename Role, typename T, int kDepth, bool kBothWays>
void launch_gradient(const AttentionProblem& problem, const AttentionGradient& gradient,
                     bool are_in_pieces, Stream stream) {
  using P = GradientTiles<Role, T, kDepth>;
  const dim3 grid(static_cast<unsigned>(Role::kRowsAreQueries ? problem.heads : problem.kv_heads),
                  static_cast<unsigned>((problem.tokens + P::kRows - 1) / P::kRows));
  launch_with_memory(attention_gradient<Role, T, kDepth, kBothWays>, grid, P::kThreads, P::kBytes,
                     stream, problem, gradient, are_in_pieces);
}

}  // namespace

void launch_attention_backward(Type type, const AttentionProblem& problem,
                               const AttentionGradient& gradient, Stream stream) {
  if (problem.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((problem.tokens * problem.heads + kWarps - 1) / kWarps);
  const bool are_in_pieces =
      in_pieces(type, problem, {gradient.d_out, gradient.dq, gradient.dk, gradient.dv});
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(problem.depth, {gradient.d_out, gradient.out}), [&](auto width) {
      launch(attention_delta<T, decltype(width)::value>, blocks, kThreads, stream, problem,
             gradient);
    });
    for_kernel(problem, [&](auto depth, auto both_ways) {
      constexpr int kDepth = decltype(depth)::value;
      constexpr bool kBothWays = decltype(both_ways)::value;
      const auto launch_role = [&](auto role) {
        launch_gradient<decltype(role), T, kDepth, kBothWays>(problem, gradient, are_in_pieces,
                                                              stream);
      };
      launch_role(OfQueries());
      if constexpr (kDepth <= 256) {
        launch_role(OfKeysAndValues());
      } else {
        launch_role(OfKeys());
        launch_role(OfValues());
      }
    });
  });
}

const Provided kLaunchers[] = {{"launch_attention_backward", launch_attention_backward}};

}  // namespace sftrun::kernels::cuda
