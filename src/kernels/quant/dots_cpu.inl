// Dot products of one matrix row with a few tokens; quantised values are multiplied as they are
// decoded. Values equal those of dequantize_… in fp32. Sums are in fp32, in an order that depends
// only on the row's length. x is fp32 [tokens, n]; n is a multiple of 32.

constexpr int64_t kAtOnce = 32;  ///< values

/// Layout of x for `dot_4bit`: of each 32 values first the even ones, then the odd ones, because
/// the two codes of a byte belong to neighbouring values.
void split_pairs(const float* x, int64_t n, float* out) {
  for (int64_t first = 0; first < n; first += kAtOnce) {
#pragma omp simd
    for (int64_t i = 0; i < kAtOnce / 2; ++i) {
      out[first + i] = x[first + 2 * i];
      out[first + kAtOnce / 2 + i] = x[first + 2 * i + 1];
    }
  }
}

namespace {

#ifdef __AVX2__
#ifdef __AVX512F__
inline float total_of(Sixteen sum) {
  return _mm512_reduce_add_ps(sum);
}
/// Values of the high and of the low codes.
struct SixteenPairs {
  Sixteen firsts, seconds;
};
/// For 16 bytes. The lookup ignores bits above a code's four.
inline SixteenPairs pairs_of(const uint8_t* packed, Sixteen values) {
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values),
          _mm512_permutexvar_ps(bytes, values)};
}
#else
inline float total_of(Sixteen sum) {
  const __m256 eight = _mm256_add_ps(sum.low, sum.high);
  __m128 few = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  few = _mm_add_ps(few, _mm_movehl_ps(few, few));
  return _mm_cvtss_f32(_mm_add_ss(few, _mm_movehdup_ps(few)));
}
struct SixteenPairs {
  Sixteen firsts, seconds;
};
inline __m256 look_up_eight(Sixteen values, __m256i codes) {
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(values.low, codes),
                          _mm256_permutevar8x32_ps(values.high, codes),
                          _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}
inline SixteenPairs pairs_of(const uint8_t* packed, Sixteen values) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m256i low = _mm256_cvtepu8_epi32(bytes),
                high = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes));
  return {{look_up_eight(values, _mm256_srli_epi32(low, 4)),
           look_up_eight(values, _mm256_srli_epi32(high, 4))},
          {look_up_eight(values, low), look_up_eight(values, high)}};
}
#endif

template <int kTokens>
struct DotSums {
  Sixteen firsts[kTokens], seconds[kTokens];

  DotSums() {
    for (int t = 0; t < kTokens; ++t) firsts[t] = seconds[t] = all(0.0F);
  }
  /// @param x at the first of the 32 values; rows are `n` apart
  void add(Sixteen first, Sixteen second, const float* x, int64_t n) {
    for (int t = 0; t < kTokens; ++t) {
      add_product(firsts[t], first, x + t * n);
      add_product(seconds[t], second, x + t * n + kAtOnce / 2);
    }
  }
  void write(float* out) const {
    for (int t = 0; t < kTokens; ++t) out[t] = total_of(firsts[t]) + total_of(seconds[t]);
  }
};

/// Accumulates decoded values into sums; used in place of the output pointer of the decoders.
template <int kTokens>
struct DotSink {
  const float* x;
  int64_t n;
  DotSums<kTokens>* sums;

  DotSink operator+(int64_t values) const { return {x + values, n, sums}; }
  DotSink& operator+=(int64_t values) { return *this = *this + values; }
};
template <int kTokens>
SFTRUN_INLINE void store_finite(const DotSink<kTokens>& to, Sixteen first, Sixteen second) {
  to.sums->add(first, second, to.x, to.n);
}
/// Any 32 values, finite or not.
template <int kTokens>
SFTRUN_INLINE void store_numbers(const float* numbers, int64_t /*count*/,
                                 const DotSink<kTokens>& to) {
  to.sums->add(load_sixteen(numbers), load_sixteen(numbers + kAtOnce / 2), to.x, to.n);
}

template <int kTokens>
void dots_4bit(const FourBitRow& row, int64_t n, const float* x, float* out) {
  DotSums<kTokens> sums;
  const Sixteen table = load_sixteen(row.table);
  const float* scale = row.scales;
  const uint8_t* zero = row.zeros;
  int64_t before = row.first;
  for (int64_t i = 0; i < n; ++scale, before = 0) {
    const int64_t stop = std::min(n, i + row.block_size - before);
    const Sixteen values =
        (zero == nullptr ? table : table - all(static_cast<float>(*zero++))) * all(*scale);
    for (; i < stop; i += kAtOnce) {
      const SixteenPairs pairs = pairs_of(row.packed + i / 2, values);
      sums.add(pairs.firsts, pairs.seconds, x + i, n);
    }
  }
  sums.write(out);
}

template <int kTokens>
void dots_ggml(uint32_t type, const uint8_t* blocks, int64_t n, const float* x, float* out) {
  ggml::with_format(static_cast<weights::GgmlType>(type), [&](auto format) {
    DotSums<kTokens> sums;
    decode_groups<decltype(format)>(blocks, 0, n / kGroup, DotSink<kTokens>{x, n, &sums});
    sums.write(out);
  });
}

template <int kTokens>
void dots_8bit(const EightBitRow& row, int64_t n, const float* x, float* out) {
  DotSums<kTokens> sums;
  const float* scale = row.scales;
  for (int64_t i = 0; i < n; i += row.block_size, ++scale) {
    unpack_groups(row.form, row.codes + i, std::min(row.block_size, n - i), *scale,
                  DotSink<kTokens>{x + i, n, &sums});
  }
  sums.write(out);
}
#else
/// @param unpack unpack(first, numbers) writes values [first, first + 32)
template <int kTokens, typename Unpack>
void dots_of_parts(const Unpack& unpack, int64_t n, const float* x, float* out) {
  std::fill(out, out + kTokens, 0.0F);
  for (int64_t first = 0; first < n; first += kAtOnce) {
    float values[kAtOnce];
    unpack(first, values);
    for (int t = 0; t < kTokens; ++t) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < kAtOnce; ++i) sum += values[i] * x[t * n + first + i];
      out[t] += sum;
    }
  }
}
template <int kTokens>
void dots_4bit(const FourBitRow& row, int64_t n, const float* x, float* out) {
  const auto unpack = [&](int64_t first, float* values) {
    const int64_t block = (row.first + first) / row.block_size;
    const float scale = row.scales[block],
                zero = row.zeros == nullptr ? 0.0F : static_cast<float>(row.zeros[block]);
    for (int64_t i = 0; i < kAtOnce / 2; ++i) {
      const uint8_t byte = row.packed[first / 2 + i];
      values[i] = (row.table[byte >> 4] - zero) * scale;
      values[i + kAtOnce / 2] = (row.table[byte & 15] - zero) * scale;
    }
  };
  dots_of_parts<kTokens>(unpack, n, x, out);
}

template <int kTokens>
void dots_ggml(uint32_t type, const uint8_t* blocks, int64_t n, const float* x, float* out) {
  const auto unpack = [&](int64_t first, float* values) {
    decode(type, blocks, first / kGroup, 1, values);
  };
  dots_of_parts<kTokens>(unpack, n, x, out);
}

template <int kTokens>
void dots_8bit(const EightBitRow& row, int64_t n, const float* x, float* out) {
  const auto unpack = [&](int64_t first, float* values) {
    const float scale = row.scales[first / row.block_size];
    for (int64_t i = 0; i < kAtOnce; ++i)
      values[i] = eight_bit_value(row.form, row.codes[first + i], scale);
  };
  dots_of_parts<kTokens>(unpack, n, x, out);
}
#endif

/// Calls dots(number of tokens as a type, x, out) for four tokens at a time, then for single ones.
template <typename Dots>
void in_fours(int64_t tokens, int64_t n, const float* x, float* out, const Dots& dots) {
  constexpr int kFour = 4;
  for (; tokens >= kFour; tokens -= kFour, x += kFour * n, out += kFour)
    dots(std::integral_constant<int, kFour>(), x, out);
  for (; tokens > 0; --tokens, x += n, ++out) dots(std::integral_constant<int, 1>(), x, out);
}

}  // namespace

void dot_4bit(const FourBitRow& row, int64_t n, const float* x, int64_t tokens, float* out) {
  in_fours(tokens, n, x, out, [&](auto count, const float* first_token, float* to) {
    dots_4bit<decltype(count)::value>(row, n, first_token, to);
  });
}
void dot_8bit(const EightBitRow& row, int64_t n, const float* x, int64_t tokens, float* out) {
  in_fours(tokens, n, x, out, [&](auto count, const float* first_token, float* to) {
    dots_8bit<decltype(count)::value>(row, n, first_token, to);
  });
}
void dot_ggml(uint32_t type, const uint8_t* blocks, int64_t n, const float* x, int64_t tokens,
              float* out) {
  in_fours(tokens, n, x, out, [&](auto count, const float* first_token, float* to) {
    dots_ggml<decltype(count)::value>(type, blocks, n, first_token, to);
  });
}

void add_dots(const float* values, int64_t count, int64_t n, const float* x, int64_t tokens,
              float* out) {
  constexpr int64_t kLanes = 2 * kAtOnce;
  for (int64_t t = 0; t < tokens; ++t, x += n) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane] * x[i + lane];
    }
    for (int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += values[i] * x[i];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
    out[t] += sum;
  }
}
