// Rounds rows to e4m3: writes the values of quantize_row_e4m3's codes (eight_bits_cpu.inl), not the
// codes.

#ifdef __AVX512F__
inline __m512 sixteen_at(const float* from) {
  return _mm512_loadu_ps(from);
}
inline __m512 sixteen_at(const uint16_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// x / scale, correctly rounded, computed by multiplication and two remainder corrections, because
/// division is slower. After the first correction the error is at most one unit in the last place,
/// after the second the result is the nearest value (P. Markstein, IBM J. Res. Dev. 34-1, 1990).
/// @pre inverse is 1 / scale, rounded; the remainders are not subnormal
inline __m512 quotient(__m512 x, __m512 scale, __m512 inverse) {
  __m512 quotient = _mm512_mul_ps(x, inverse);
  quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale, x), inverse, quotient);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scale, x), inverse, quotient);
}

/// Rounds to three fraction bits, and no finer than 2^-9, by adding and subtracting a power of two
/// so large that lower bits are rounded off.   @pre 0 <= x < 464
inline __m512 magnitude_to_e4m3(__m512 x) {
  const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0xff << 23)),
                least = _mm512_set1_epi32((127 - 6) << 23);
  const __m512 above = _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_max_epi32(exponent, least), _mm512_set1_epi32(20 << 23)));
  return _mm512_sub_ps(_mm512_add_ps(x, above), above);
}

/// x / scale rounded to e4m3, with the sign of x (the remainder corrections turn -0 into 0).
inline __m512 quotient_to_e4m3(__m512 x, __m512 scale, __m512 inverse) {
  const __m512 magnitude = magnitude_to_e4m3(_mm512_abs_ps(quotient(x, scale, inverse)));
  return _mm512_or_ps(magnitude, _mm512_and_ps(x, _mm512_set1_ps(-0.0F)));
}

/// Stores values that are exact in the destination type.
inline void store_exact(float* to, __m512 first, __m512 second) {
  store_thirty_two(to, first, second);
}
inline void store_exact(uint16_t* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, high_halves(_mm512_castps_si512(first), _mm512_castps_si512(second)));
}
#endif

template <typename T>
float value_at(const T* x, const float* gains, int64_t i) {
  return gains == nullptr ? load(x + i) : load(x + i) * gains[i];
}

template <typename T>
float largest_value(const T* x, const float* gains, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float value = value_at(x, gains, i), magnitude = value < 0 ? -value : value;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Separate loops, so that each vectorises.
template <typename T, typename Code>
void round_values(const T* x, const float* gains, float scale, int64_t begin, int64_t end,
                  Code* out) {
  constexpr int64_t kPart = 256;
  float values[kPart];
  uint8_t codes[kPart];
  for (int64_t first = begin; first < end; first += kPart) {
    const int64_t count = std::min(kPart, end - first);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) values[i] = value_at(x, gains, first + i) / scale;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) codes[i] = e4m3_code_cut(values[i]);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) values[i] = e4m3_value(codes[i]);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(out + first + i, values[i]);
  }
}

#ifdef __AVX512F__
/// Vectorised part: whole groups of 32 values; returns the number of values.
template <typename T, typename Code>
int64_t round_vectors(const T* x, const float* gains, float scale, int64_t n, Code* out) {
  constexpr float kSmall = 0x1p-90F;  // keeps relevant remainders above 2^-147
  if (!(scale >= kSmall && scale <= std::numeric_limits<float>::max())) return 0;
  const __m512 scales = _mm512_set1_ps(scale), inverse = _mm512_set1_ps(1.0F / scale);
  const auto sixteen = [&](int64_t i) {
    const __m512 values = sixteen_at(x + i);
    return gains == nullptr ? values : _mm512_mul_ps(values, _mm512_loadu_ps(gains + i));
  };
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512 first = sixteen(i), second = sixteen(i + 16);
    if (_mm512_cmp_ps_mask(first, second, _CMP_UNORD_Q) != 0)
      round_values(x, gains, scale, i, i + 32, out);
    else
      store_exact(out + i, quotient_to_e4m3(first, scales, inverse),
                  quotient_to_e4m3(second, scales, inverse));
  }
  return i;
}
#endif

/// Returns the row's scale. Code (float, or uint16_t that holds bfloat16) represents e4m3 values
/// exactly.
/// @param gains [n], multiplied first; null: none
template <typename T, typename Code>
float round_row_e4m3(const T* x, const float* gains, int64_t n, Code* out) {
  const float scale = e4m3_scale(largest_value(x, gains, n));
  int64_t done = 0;
#ifdef __AVX512F__
  done = round_vectors(x, gains, scale, n, out);
#endif
  round_values(x, gains, scale, done, n, out);
  return scale;
}
