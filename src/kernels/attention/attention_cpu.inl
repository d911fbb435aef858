// The parts of tiled attention between the products. A tile is kTile queries by kTile keys; rows
// and columns past the end of a document are zeros in the packed operands, and the causal mask
// removes them. Suffixes: Q queries, K keys, D head_dim. "paired" is the layout that bf16 products
// want of their right operand: rows two by two.

/// out_RD = rows [0, valid) of src (row stride `stride`), zeros below.
template <typename T>
void pack_rows(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out) {
  for (int64_t r = 0; r < kAttentionTile; ++r) {
    if (r < valid)
      __builtin_memcpy(out + r * depth, src + r * stride, static_cast<size_t>(depth) * sizeof(T));
    else
      __builtin_memset(out + r * depth, 0, static_cast<size_t>(depth) * sizeof(T));
  }
}

/// out_DR: the same, transposed.
template <typename T>
void pack_transposed(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out) {
  for (int64_t r = 0; r < kAttentionTile; ++r) {
    for (int64_t d = 0; d < depth; ++d)
      out[d * kAttentionTile + r] = r < valid ? src[r * stride + d] : T{0};
  }
}

/// [rows / 2][columns][2] from a packed [rows][columns].
template <typename T>
void pair_rows(const T* in, int64_t rows, int64_t columns, T* out) {
  for (int64_t r = 0; r < rows; r += 2) {
    const T* first = in + r * columns;
    const T* second = first + columns;
    T* to = out + r * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      to[2 * c] = first[c];
      to[2 * c + 1] = second[c];
    }
  }
}

/// scores_QK become cap * tanh(scores * scale / cap).
inline void cap_scores(float* scores, float scale, float cap) {
#pragma omp simd
  for (int64_t i = 0; i < kAttentionTile * kAttentionTile; ++i)
    scores[i] = cap * tanh_fast(scores[i] * scale / cap);
}

/// Whether place i of a tile's row is seen: whole rows are computed and what is hidden is left out,
/// for short loops of odd lengths cost more.
inline bool is_seen(int32_t i, int32_t first, int32_t last) {
  return (i >= first) & (i < last);
}

/// One step of the online softmax (FlashAttention-2, arXiv:2307.08691, algorithm 1) for a tile of
/// scores_QK * scale (scale > 0): updates each query's running maximum and sum, rescales its
/// accumulator acc_QD, writes p_QK = exp(score - maximum), 0 where the mask hides the key.
template <typename T>
void softmax_tile(const float* scores, float scale, TileMask mask, int64_t depth, float* maximum,
                  float* sum, float* acc, T* p) {
  constexpr auto kKeys = static_cast<int32_t>(kAttentionTile);
  for (int64_t q = 0; q < kAttentionTile; ++q) {
    const float* row = scores + q * kAttentionTile;
    T* out = p + q * kAttentionTile;
    const auto first = static_cast<int32_t>(q + mask.first),
               last = static_cast<int32_t>(q + mask.last);
    float top = maximum[q];
    const float hidden = top;
#pragma omp simd reduction(max : top)
    for (int32_t k = 0; k < kKeys; ++k) {
      const float score = is_seen(k, first, last) ? row[k] * scale : hidden;
      top = score > top ? score : top;
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int32_t k = 0; k < kKeys; ++k) {
      const float e = is_seen(k, first, last) ? exp_fast(row[k] * scale - top) : 0.0F;
      total += e;
      store(out + k, e);
    }
    const float rescale = exp_fast(maximum[q] - top);
    maximum[q] = top;
    sum[q] = sum[q] * rescale + total;
    float* acc_row = acc + q * depth;
#pragma omp simd
    for (int64_t d = 0; d < depth; ++d) acc_row[d] *= rescale;
  }
}

/// Transposed tiles of the backward pass: p_KQ = exp(scores_KQ * scale - lse_Q), ds_KQ = p (dp_KQ -
/// delta_Q) scale. Under a cap, scores hold what `cap_scores` made of them, and the slope of tanh
/// joins in.
template <typename T>
void softmax_tile_backward(const float* scores, const float* dp, const float* lse,
                           const float* delta, float scale, float cap, TileMask mask, T* p, T* ds) {
  constexpr auto kQueries = static_cast<int32_t>(kAttentionTile);
  const float score_scale = cap > 0 ? 1.0F : scale, inverse_cap = cap > 0 ? 1.0F / cap : 0.0F;
  for (int64_t k = 0; k < kAttentionTile; ++k) {
    // Query q sees keys from q + mask.first to q + mask.last: key k is seen from k - mask.last + 1.
    const auto first = static_cast<int32_t>(k - mask.last + 1),
               last = static_cast<int32_t>(k - mask.first + 1);
    const int64_t base = k * kAttentionTile;
#pragma omp simd
    for (int32_t q = 0; q < kQueries; ++q) {
      const float score = scores[base + q], tanh_of = score * inverse_cap;
      const float probability = exp_fast(score * score_scale - lse[q]);
      const float slope = (dp[base + q] - delta[q]) * scale * (1.0F - tanh_of * tanh_of);
      const bool seen = is_seen(q, first, last);
      store(p + base + q, seen ? probability : 0.0F);
      store(ds + base + q, seen ? probability * slope : 0.0F);
    }
  }
}

/// out rows [0, valid) (stride `stride`) = acc_QD / sum_Q, and lse = maximum + log(sum).
template <typename T>
void finish_rows(const float* acc, const float* maximum, const float* sum, int64_t valid,
                 int64_t depth, T* out, int64_t stride, float* lse) {
  for (int64_t q = 0; q < valid; ++q) {
    const float inverse = 1.0F / sum[q];
    for (int64_t d = 0; d < depth; ++d) store(out + q * stride + d, acc[q * depth + d] * inverse);
    lse[q] = maximum[q] + __builtin_logf(sum[q]);
  }
}

/// delta_Q = sum over D of d_out * out, of rows [0, valid); 0 below.
template <typename T>
void row_dots(const T* d_out, const T* out, int64_t stride, int64_t valid, int64_t depth,
              float* delta) {
  for (int64_t q = 0; q < kAttentionTile; ++q) {
    float dot = 0;
    if (q < valid) {
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < depth; ++d)
        dot += load(d_out + q * stride + d) * load(out + q * stride + d);
    }
    delta[q] = dot;
  }
}

/// out rows [0, valid) = transpose of acc_DQ.
template <typename T>
void unpack_transposed(const float* acc, int64_t valid, int64_t depth, T* out, int64_t stride) {
  for (int64_t q = 0; q < valid; ++q) {
    for (int64_t d = 0; d < depth; ++d) store(out + q * stride + d, acc[d * kAttentionTile + q]);
  }
}

/// out rows [0, valid) = sum over `count` accumulators [kTile, D], `gap` elements apart (the query
/// heads of a group).
template <typename T>
void sum_rows(const float* acc, int64_t count, int64_t gap, int64_t valid, int64_t depth, T* out,
              int64_t stride) {
  for (int64_t r = 0; r < valid; ++r) {
#pragma omp simd
    for (int64_t d = 0; d < depth; ++d) {
      float total = 0;
      for (int64_t i = 0; i < count; ++i) total += acc[i * gap + r * depth + d];
      store(out + r * stride + d, total);
    }
  }
}
