#pragma once

// Sixteen floats at a time, with AVX-512 in one vector, with AVX2 in two. To be included after
// cpu/math.h, inside the namespace of one instruction set.

#ifdef __AVX512F__
using Sixteen = __m512;

inline Sixteen all(float value) {
  return _mm512_set1_ps(value);
}
/// Of signed bytes.
inline Sixteen whole_numbers(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
/// Entries of a table of 16.   @pre indices are below 16
inline Sixteen look_up(const float* table, __m128i indices) {
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(indices), _mm512_loadu_ps(table));
}

#elif defined(__AVX2__)
struct Sixteen {
  __m256 low, high;
};

inline Sixteen operator*(Sixteen a, Sixteen b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Sixteen operator+(Sixteen a, Sixteen b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Sixteen operator-(Sixteen a, Sixteen b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Sixteen all(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
inline __m256 eight_whole_numbers(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
/// Of signed bytes.
inline Sixteen whole_numbers(__m128i bytes) {
  return {eight_whole_numbers(bytes), eight_whole_numbers(_mm_unpackhi_epi64(bytes, bytes))};
}
inline __m256 look_up_eight(const float* table, __m128i indices) {
  const __m256i wide = _mm256_cvtepu8_epi32(indices);
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), wide),
                          _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), wide),
                          _mm256_castsi256_ps(_mm256_slli_epi32(wide, 28)));
}
/// Entries of a table of 16.   @pre indices are below 16
inline Sixteen look_up(const float* table, __m128i indices) {
  return {look_up_eight(table, indices),
          look_up_eight(table, _mm_unpackhi_epi64(indices, indices))};
}

inline void store_thirty_two(float* to, Sixteen first, Sixteen second) {
  _mm256_storeu_ps(to, first.low);
  _mm256_storeu_ps(to + 8, first.high);
  _mm256_storeu_ps(to + 16, second.low);
  _mm256_storeu_ps(to + 24, second.high);
}
/// In bf16, as `store`, in the low halves.
inline __m256i eight_rounded(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0),
                            _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q)));
}
inline void store_rounded(uint16_t* to, Sixteen values) {
  const __m256i packed = _mm256_packus_epi32(eight_rounded(values.low), eight_rounded(values.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline void store_thirty_two(uint16_t* to, Sixteen first, Sixteen second) {
  store_rounded(to, first);
  store_rounded(to + 16, second);
}
#endif
