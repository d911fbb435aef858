// 8-bit formats with one scale per row (include/sftrun/kernels/quant.h).

#include "sftrun/weights/eight_bits.inl"

#ifdef __AVX512F__
inline bool are_numbers(__m256i codes) {
  const __m256i magnitudes = _mm256_or_si256(codes, _mm256_set1_epi8(-128));
  return _mm256_cmpeq_epi8_mask(magnitudes, _mm256_set1_epi8(-1)) == 0;
}

/// Thirty-two e4m3 codes, converted through fp16: the exponent fields are compatible, but the
/// values come out 2^8 too small.
/// @param scales the row's scale times 2^8
template <typename Out>
SFTRUN_INLINE void store_e4m3(__m256i codes, __m512 scales, const Out& out) {
  const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
  const __m512i halves = _mm512_and_si512(_mm512_srai_epi16(high, 1),  // duplicates the sign bit
                                          _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
  store_finite(out, _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), scales),
               _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), scales));
}

template <typename Out>
SFTRUN_INLINE void store_int8(__m256i codes, __m512 scales, const Out& out) {
  const __m512 inverse = _mm512_set1_ps(kInverse127);
  const __m512 first = whole_numbers(_mm256_castsi256_si128(codes)) * scales,
               second = whole_numbers(_mm256_extracti128_si256(codes, 1)) * scales;
  store_finite(out, first * inverse, second * inverse);
}
#endif

/// e4m3: code * scale. int8: code * scale / 127, in the order of operations of bitsandbytes'
/// int8_vectorwise_dequant.
inline float eight_bit_value(EightBits form, uint8_t code, float scale) {
  return form == EightBits::kE4m3 ? e4m3_value(code) * scale : int8_value(code, scale);
}

/// Dequantises the whole groups of 32 values of a row.   @return number of values written
/// @tparam Out pointer, or an accumulator in its place (dots_cpu.inl)
template <typename Out>
SFTRUN_INLINE int64_t unpack_groups(EightBits form, const uint8_t* codes, int64_t n, float scale,
                                    Out out) {
  int64_t i = 0;
  const auto one_by_one = [&] {
    float numbers[32];
    for (int64_t k = 0; k < 32; ++k) numbers[k] = eight_bit_value(form, codes[i + k], scale);
    store_numbers(numbers, 32, out + i);
  };
#ifdef __AVX512F__
  constexpr float kScale = 256;
  const bool is_e4m3 = form == EightBits::kE4m3;
  const bool is_finite = std::abs(scale) <= std::numeric_limits<float>::max() / kScale;
  const __m512 scales = _mm512_set1_ps(is_e4m3 ? scale * kScale : scale);
  for (; is_finite && i + 32 <= n; i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    if (!is_e4m3)
      store_int8(bytes, scales, out + i);
    else if (are_numbers(bytes))
      store_e4m3(bytes, scales, out + i);
    else
      one_by_one();
  }
#endif
  for (; i + 32 <= n; i += 32) one_by_one();
  return i;
}

/// @param scale scale of the row
template <typename T>
void dequantize_8bit(EightBits form, const uint8_t* codes, int64_t n, float scale, T* out) {
  for (int64_t i = unpack_groups(form, codes, n, scale, out); i < n; ++i)
    store(out + i, eight_bit_value(form, codes[i], scale));
}

inline float largest_magnitude(const float* x, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Quantises one row; returns its scale, absmax / 448 (1 / 448 for zeros), as transformers'
/// quantize_fp8_per_row.
float quantize_row_e4m3(const float* x, int64_t n, uint8_t* codes) {
  const float scale = e4m3_scale(largest_magnitude(x, n));
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = e4m3_code_cut(x[i] / scale);
  return scale;
}

/// Quantises one row; returns its absmax, as bitsandbytes' int8_vectorwise_quant.
float quantize_row_int8(const float* x, int64_t n, uint8_t* codes) {
  const float largest = largest_magnitude(x, n);
  // Rounded twice: PyTorch computes 127.0 / tensor as tensor.reciprocal() * 127.
  const float steps = largest > 0 ? 1.0F / largest * 127.0F : 0.0F;
  constexpr float kRoundMagic = 12582912.0F;  // 1.5 * 2^23: rounds to an integer
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = (x[i] * steps + kRoundMagic) - kRoundMagic;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(rounded));
  }
  return largest;
}
