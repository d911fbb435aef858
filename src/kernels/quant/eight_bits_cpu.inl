// Eight bits a value, with a factor for each row (include/sftrun/kernels/quant.h).

#include "sftrun/weights/eight_bits.inl"

#ifdef __AVX512F__
inline __m512 sixteen_e4m3(__m128i codes) {
  const __m512i wide = _mm512_cvtepu8_epi32(codes), all = _mm512_set1_epi32(0x7f);
  const __m512i magnitude = _mm512_and_si512(wide, all),
                sign = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)), 24);
  // By way of fp16, whose exponent they fit: no subnormal floats, which processors are slow with.
  const __m256i halves = _mm512_cvtepi32_epi16(_mm512_slli_epi32(magnitude, 7));
  const __m512 scaled = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0F));
  const __m512i bits =
      _mm512_mask_mov_epi32(_mm512_castps_si512(scaled), _mm512_cmpeq_epi32_mask(magnitude, all),
                            _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}
#endif

/// e4m3: code * factor. int8: code * factor / 127, in the order of bitsandbytes'
/// int8_vectorwise_dequant.   @param factor of the row that all n are of
template <typename T>
void dequantize_8bit(EightBits form, const uint8_t* codes, int64_t n, float factor, T* out) {
  const bool is_e4m3 = form == EightBits::kE4m3;
  int64_t i = 0;
#ifdef __AVX512F__
  const __m512 factors = _mm512_set1_ps(factor), inverse = _mm512_set1_ps(7.874015718698502e-3F);
  for (; i + 16 <= n; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m512 values =
        is_e4m3
            ? _mm512_mul_ps(sixteen_e4m3(bytes), factors)
            : _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), factors),
                            inverse);
    store_sixteen(out + i, values);
  }
#endif
  for (; i < n; ++i)
    store(out + i, is_e4m3 ? e4m3_value(codes[i]) * factor : int8_value(codes[i], factor));
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

/// One row's codes; returns its factor, largest / 448 (of zeros 1 / 448), as transformers'
/// quantize_fp8_per_row. Overwrites x.   @param gains of the columns, multiplied first; null: none
float quantize_row_e4m3(float* x, const float* gains, int64_t n, uint8_t* codes) {
  if (gains != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] *= gains[i];
  }
  const float factor = e4m3_factor(largest_magnitude(x, n));
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = e4m3_code_cut(x[i] / factor);
  return factor;
}

/// One row's codes; returns its largest magnitude, as bitsandbytes' int8_vectorwise_quant.
float quantize_row_int8(const float* x, int64_t n, uint8_t* codes) {
  const float largest = largest_magnitude(x, n);
  // Rounded twice: Python's 127.0 / tensor is the tensor's reciprocal times 127.
  const float steps = largest > 0 ? 1.0F / largest * 127.0F : 0.0F;
  constexpr float kRoundMagic = 12582912.0F;  // 1.5 * 2^23: sums are rounded to whole numbers
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = (x[i] * steps + kRoundMagic) - kRoundMagic;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(rounded));
  }
  return largest;
}
