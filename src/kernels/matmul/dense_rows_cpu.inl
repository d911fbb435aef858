// Products x w^T of a dense w with few rows of x, which read w from memory once. Values of w are
// converted to fp32 in registers. Each sum is formed in an order that depends only on n, so that a
// token's result does not depend on the other tokens. Included after quant/dots_cpu.inl.

namespace {

#ifdef __AVX2__
constexpr int64_t kLanes = 16;
#ifdef __AVX512F__
constexpr int kTileRows = 4;  // of w, for each of which four sums fit into registers

/// Sums of the lanes of four vectors.
inline __m128 totals_of(Sixteen a, Sixteen b, Sixteen c, Sixteen d) {
  const auto halves = [](Sixteen x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  };
  const __m256 four =
      _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
  return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}
/// @param sums of rows of w, for one token   @param adds whether `out` has those of earlier values
template <int kRows>
SFTRUN_INLINE void write_totals(const Sixteen (&sums)[kRows], bool adds, float* out) {
  if constexpr (kRows == 4) {
    const __m128 totals = totals_of(sums[0], sums[1], sums[2], sums[3]);
    _mm_storeu_ps(out, adds ? _mm_add_ps(totals, _mm_loadu_ps(out)) : totals);
  } else {
    static_assert(kRows == 1);
    const float total = _mm_cvtss_f32(totals_of(sums[0], all(0), all(0), all(0)));
    out[0] = adds ? total + out[0] : total;
  }
}
#else
constexpr int kTileRows = 1;

template <int kRows>
SFTRUN_INLINE void write_totals(const Sixteen (&sums)[kRows], bool adds, float* out) {
  for (int r = 0; r < kRows; ++r) out[r] = adds ? total_of(sums[r]) + out[r] : total_of(sums[r]);
}
#endif

SFTRUN_INLINE void fetch(const void* place) {
  _mm_prefetch(static_cast<const char*>(place), _MM_HINT_T0);
}

/// Values [first, last) of kRows rows of w times kTokens rows of x.
/// @param fetches whether the rows of w that follow are wanted next
template <int kRows, int kTokens, typename T>
SFTRUN_INLINE void dense_tile(const T* w, int64_t stride, int64_t first, int64_t last,
                              const float* x, int64_t n, bool fetches, float* out,
                              int64_t out_stride) {
  Sixteen sums[kTokens][kRows];
  for (auto& of_token : sums)
    for (Sixteen& sum : of_token) sum = all(0.0F);
  for (int64_t i = first; i < last; i += kLanes) {
    Sixteen values[kRows];
    for (int r = 0; r < kRows; ++r) {
      const T* place = w + r * stride + i;
      values[r] = load_sixteen(place);
      if (fetches) fetch(place + kRows * stride);
    }
    for (int t = 0; t < kTokens; ++t)
      for (int r = 0; r < kRows; ++r) add_product(sums[t][r], values[r], x + t * n + i);
  }
  for (int t = 0; t < kTokens; ++t) write_totals<kRows>(sums[t], first > 0, out + t * out_stride);
}

template <int kRows, typename T>
SFTRUN_INLINE void dense_tiles_of(const T* w, int64_t stride, int64_t first, int64_t last,
                                  int64_t n, const float* x, int64_t tokens, float* out,
                                  int64_t out_stride) {
  constexpr int kFour = 4;
  int64_t t = 0;
  for (; t + kFour <= tokens; t += kFour)
    dense_tile<kRows, kFour>(w, stride, first, last, x + t * n, n, t == 0, out + t * out_stride,
                             out_stride);
  const auto rest = [&](auto count) {
    dense_tile<kRows, decltype(count)::value>(w, stride, first, last, x + t * n, n, t == 0,
                                              out + t * out_stride, out_stride);
  };
  if (tokens - t == 1) rest(std::integral_constant<int, 1>());
  if (tokens - t == 2) rest(std::integral_constant<int, 2>());
  if (tokens - t == 3) rest(std::integral_constant<int, 3>());
}

/// In parts for which the tokens' values stay in the L1 cache.
template <int kRows, typename T>
void dense_tiles(const T* w, int64_t stride, int64_t whole, int64_t n, const float* x,
                 int64_t tokens, float* out, int64_t out_stride) {
  constexpr int64_t kMaxDepth = 288;
  const int64_t parts = std::max<int64_t>(1, (whole + kMaxDepth - 1) / kMaxDepth),
                depth = (whole / kLanes + parts - 1) / parts * kLanes;
  int64_t first = 0;
  do {
    const int64_t last = std::min(whole, first + depth);
    dense_tiles_of<kRows>(w, stride, first, last, n, x, tokens, out, out_stride);
    first = last;
  } while (first < whole);
}

#else
constexpr int64_t kLanes = 16;
constexpr int kTileRows = 1;

template <int kRows, typename T>
void dense_tiles(const T* w, int64_t /*stride*/, int64_t whole, int64_t n, const float* x,
                 int64_t tokens, float* out, int64_t out_stride) {
  static_assert(kRows == 1);
  for (int64_t t = 0; t < tokens; ++t) {
    float sums[kLanes] = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
      for (int64_t lane = 0; lane < kLanes; ++lane)
        sums[lane] += load(w + i + lane) * x[t * n + i + lane];
    }
    float total = 0;
    for (const float sum : sums) total += sum;
    out[t * out_stride] = total;
  }
}
#endif

template <typename T>
void dense_rows(const DenseRows<T>& w, int64_t n, const float* x, int64_t tokens, float* out,
                int64_t out_stride) {
  const int64_t whole = n / kLanes * kLanes;
  int64_t row = 0;
  for (; row + kTileRows <= w.count; row += kTileRows)
    dense_tiles<kTileRows>(w.first + row * w.stride, w.stride, whole, n, x, tokens, out + row,
                           out_stride);
  for (; row < w.count; ++row)
    dense_tiles<1>(w.first + row * w.stride, w.stride, whole, n, x, tokens, out + row, out_stride);
  if (whole == n) return;
  for (int64_t t = 0; t < tokens; ++t)
    for (row = 0; row < w.count; ++row)
      for (int64_t i = whole; i < n; ++i)
        out[t * out_stride + row] += load(w.first + row * w.stride + i) * x[t * n + i];
}

}  // namespace

void dense_rows_fp32(const DenseRows<float>& w, int64_t n, const float* x, int64_t tokens,
                     float* out, int64_t out_stride) {
  dense_rows(w, n, x, tokens, out, out_stride);
}
void dense_rows_bf16(const DenseRows<uint16_t>& w, int64_t n, const float* x, int64_t tokens,
                     float* out, int64_t out_stride) {
  dense_rows(w, n, x, tokens, out, out_stride);
}
