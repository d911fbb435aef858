// The steps of tiled attention between its matrix products. A tile has kAttentionTile queries and
// kAttentionTile keys. Packed operands are zero past the end of a document, and the causal mask
// hides these rows and columns. Suffixes: Q queries, K keys, D head_dim, R rows. "Paired" is the
// VNNI layout of the right operand of bf16 products: rows interleaved in pairs.

/// out_RD = rows [0, valid) of src (row stride `stride`), zero-padded.
template <typename T>
void pack_rows(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out) {
  for (int64_t r = 0; r < kAttentionTile; ++r) {
    if (r < valid)
      __builtin_memcpy(out + r * depth, src + r * stride, static_cast<size_t>(depth) * sizeof(T));
    else
      __builtin_memset(out + r * depth, 0, static_cast<size_t>(depth) * sizeof(T));
  }
}

/// out_DR: the transpose of pack_rows' result.
template <typename T>
void pack_transposed(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out) {
  for (int64_t r = 0; r < kAttentionTile; ++r) {
    for (int64_t d = 0; d < depth; ++d)
      out[d * kAttentionTile + r] = r < valid ? src[r * stride + d] : T{0};
  }
}

/// [rows / 2][columns][2] from [rows][columns].
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

/// scores_QK = cap * tanh(scores_QK * scale / cap).
inline void cap_scores(float* scores, float scale, float cap) {
#pragma omp simd
  for (int64_t i = 0; i < kAttentionTile * kAttentionTile; ++i)
    scores[i] = cap * tanh_fast(scores[i] * scale / cap);
}

/// Whether element i of a tile's row is visible. Loops run over whole rows and mask the rest, which
/// is faster than short loops of odd lengths.
inline bool is_seen(int32_t i, int32_t first, int32_t last) {
  return (i >= first) & (i < last);
}

/// Exclusive end of the keys that query q of a tile sees.
inline int32_t end_of_keys(const TileMask& mask, int64_t q) {
  return static_cast<int32_t>(q + mask.last);
}
inline int32_t end_of_keys(const TileEnds& mask, int64_t q) {
  return mask.ends[q];
}

/// The queries of a tile that see one key. Query q sees the keys [q + mask.first, q + mask.last), so
/// key k is seen by the queries [k - mask.last + 1, k - mask.first].
struct QueriesOfKey {
  int32_t first, last;
  QueriesOfKey(const TileMask& mask, int64_t k)
      : first(static_cast<int32_t>(k - mask.last + 1)),
        last(static_cast<int32_t>(k - mask.first + 1)) {}
  bool see_key(int32_t q) const { return is_seen(q, first, last); }
};
struct QueriesAhead {
  const int32_t* ends;
  int32_t key, last;
  QueriesAhead(const TileEnds& mask, int64_t k)
      : ends(mask.ends),
        key(static_cast<int32_t>(k)),
        last(static_cast<int32_t>(k - mask.first + 1)) {}
  bool see_key(int32_t q) const { return (key < ends[q]) & (q < last); }
};
inline QueriesOfKey queries_of_key(const TileMask& mask, int64_t k) {
  return {mask, k};
}
inline QueriesAhead queries_of_key(const TileEnds& mask, int64_t k) {
  return {mask, k};
}

/// One step of the online softmax (FlashAttention-2, arXiv:2307.08691, algorithm 1) for a tile of
/// scores_QK * scale (scale > 0): updates each query's running maximum and sum, rescales its
/// accumulator acc_QD, writes p_QK = exp(score - maximum), 0 where the mask hides the key.
/// @param mask TileMask or TileEnds
template <typename T, typename Mask>
void softmax_tile(const float* scores, float scale, Mask mask, int64_t depth, float* maximum,
                  float* sum, float* acc, T* p) {
  constexpr auto kKeys = static_cast<int32_t>(kAttentionTile);
  for (int64_t q = 0; q < kAttentionTile; ++q) {
    const float* row = scores + q * kAttentionTile;
    T* out = p + q * kAttentionTile;
    const auto first = static_cast<int32_t>(q + mask.first), last = end_of_keys(mask, q);
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
/// delta_Q) scale. With a cap, scores are the output of `cap_scores`, and ds includes the
/// derivative of tanh.
template <typename T, typename Mask>
void softmax_tile_backward(const float* scores, const float* dp, const float* lse,
                           const float* delta, float scale, float cap, Mask mask, T* p, T* ds) {
  constexpr auto kQueries = static_cast<int32_t>(kAttentionTile);
  const float score_scale = cap > 0 ? 1.0F : scale, inverse_cap = cap > 0 ? 1.0F / cap : 0.0F;
  for (int64_t k = 0; k < kAttentionTile; ++k) {
    const auto queries = queries_of_key(mask, k);
    const int64_t base = k * kAttentionTile;
#pragma omp simd
    for (int32_t q = 0; q < kQueries; ++q) {
      const float score = scores[base + q], tanh_of = score * inverse_cap;
      const float probability = exp_fast(score * score_scale - lse[q]);
      const float slope = (dp[base + q] - delta[q]) * scale * (1.0F - tanh_of * tanh_of);
      const bool seen = queries.see_key(q);
      store(p + base + q, seen ? probability : 0.0F);
      store(ds + base + q, seen ? probability * slope : 0.0F);
    }
  }
}

/// out rows [0, valid) (row stride `stride`) = acc_QD / sum_Q; lse = maximum + log(sum).
template <typename T>
void finish_rows(const float* acc, const float* maximum, const float* sum, int64_t valid,
                 int64_t depth, T* out, int64_t stride, float* lse) {
  for (int64_t q = 0; q < valid; ++q) {
    const float inverse = 1.0F / sum[q];
    for (int64_t d = 0; d < depth; ++d) store(out + q * stride + d, acc[q * depth + d] * inverse);
    lse[q] = maximum[q] + __builtin_logf(sum[q]);
  }
}

/// delta_Q = sum over D of d_out * out for rows [0, valid), else 0.
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

/// out rows [0, valid) = sum of `count` accumulators [kAttentionTile, D], `gap` elements apart (the
/// query heads that share a key/value head).
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

/// Sums in lanes, which compilers do not add to one another in a tree by themselves.
template <typename T>
inline float dot_of(const float* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * load(b + i + lane);
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * load(b + i);
#pragma omp simd
  for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += lanes[lane + 8];
#pragma omp simd
  for (int64_t lane = 0; lane < 4; ++lane) lanes[lane] += lanes[lane + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

/// Attention of one token of `group` heads that share `length` keys and values. Every key and every
/// value is read once, for all heads of the group.
/// @param q, out [group, depth]   @param keys, values [length, depth], contiguous
/// @param sinks [group], or null   @param room [group * (length + 2 * depth)]
template <typename T>
void attend_cached(const T* q, int64_t group, const T* keys, const T* values, int64_t length,
                   int64_t depth, float scale, float cap, const float* sinks, float* room, T* out) {
  float *scores = room, *queries = room + group * length, *sums = queries + group * depth;
  for (int64_t i = 0; i < group * depth; ++i) queries[i] = load(q + i) * scale;
  for (int64_t k = 0; k < length; ++k) {
    for (int64_t g = 0; g < group; ++g) {
      scores[g * length + k] = dot_of(queries + g * depth, keys + k * depth, depth);
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* row = scores + g * length;
    float top = sinks == nullptr ? row[0] : sinks[g], total = 0;
    if (cap > 0) {
#pragma omp simd
      for (int64_t k = 0; k < length; ++k) row[k] = cap * tanh_fast(row[k] / cap);
      if (sinks == nullptr) top = row[0];
    }
#pragma omp simd reduction(max : top)
    for (int64_t k = 0; k < length; ++k) top = row[k] > top ? row[k] : top;
#pragma omp simd reduction(+ : total)
    for (int64_t k = 0; k < length; ++k) {
      row[k] = exp_fast(row[k] - top);
      total += row[k];
    }
    if (sinks != nullptr) total += exp_fast(sinks[g] - top);
    for (int64_t k = 0; k < length; ++k) row[k] /= total;
  }
  for (int64_t i = 0; i < group * depth; ++i) sums[i] = 0;
  for (int64_t k = 0; k < length; ++k) {
    for (int64_t g = 0; g < group; ++g) {
      const float weight = scores[g * length + k];
#pragma omp simd
      for (int64_t d = 0; d < depth; ++d)
        sums[g * depth + d] += weight * load(values + k * depth + d);
    }
  }
  for (int64_t i = 0; i < group * depth; ++i) store(out + i, sums[i]);
}
