#pragma once

// Vectors of sixteen floats: one AVX-512 register or two AVX2 registers. To be included after
// cpu/math.h, inside the namespace of one instruction set.

#ifdef __AVX512F__
using Sixteen = __m512;

inline Sixteen all(float value) {
  return _mm512_set1_ps(value);
}
inline Sixteen first_of(__m128 values) {
  return _mm512_broadcastss_ps(values);
}
/// The first value eight times, then the second.
inline Sixteen eight_of_each(__m128 two) {
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                               _mm512_castps128_ps512(two));
}
/// Converts signed bytes.
inline Sixteen whole_numbers(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
/// Entries of a table of 16.   @pre indices are below 16
inline Sixteen look_up(const float* table, __m128i indices) {
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(indices), _mm512_loadu_ps(table));
}
inline void add_product(Sixteen& sum, Sixteen a, const float* b) {
  sum = _mm512_fmadd_ps(a, _mm512_loadu_ps(b), sum);
}
inline Sixteen load_sixteen(const float* from) {
  return _mm512_loadu_ps(from);
}
inline Sixteen load_sixteen(const uint16_t* from) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/// sum += a * b
inline void add_scaled(Sixteen& sum, Sixteen a, float b) {
  sum = _mm512_fmadd_ps(a, _mm512_set1_ps(b), sum);
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
inline Sixteen first_of(__m128 values) {
  return {_mm256_broadcastss_ps(values), _mm256_broadcastss_ps(values)};
}
/// The first value eight times, then the second.
inline Sixteen eight_of_each(__m128 two) {
  return {_mm256_broadcastss_ps(two), _mm256_broadcastss_ps(_mm_movehdup_ps(two))};
}
inline __m256 eight_whole_numbers(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
/// Converts signed bytes.
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

inline void add_product(Sixteen& sum, Sixteen a, const float* b) {
  sum.low = _mm256_fmadd_ps(a.low, _mm256_loadu_ps(b), sum.low);
  sum.high = _mm256_fmadd_ps(a.high, _mm256_loadu_ps(b + 8), sum.high);
}
inline Sixteen load_sixteen(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline __m256 load_eight(const uint16_t* from) {
  const __m256i wide =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Sixteen load_sixteen(const uint16_t* from) {
  return {load_eight(from), load_eight(from + 8)};
}
/// sum += a * b
inline void add_scaled(Sixteen& sum, Sixteen a, float b) {
  const __m256 every = _mm256_set1_ps(b);
  sum.low = _mm256_fmadd_ps(a.low, every, sum.low);
  sum.high = _mm256_fmadd_ps(a.high, every, sum.high);
}

inline void store_sixteen(float* to, Sixteen values) {
  _mm256_storeu_ps(to, values.low);
  _mm256_storeu_ps(to + 8, values.high);
}
/// Rounds to bf16 as `store`; results are in the low halves.   @pre no value is NaN
inline __m256i finite_to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))),
                           16);
}
inline void store_finite(uint16_t* to, Sixteen values) {
  const __m256i halves =
      _mm256_packus_epi32(finite_to_bf16(values.low), finite_to_bf16(values.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(halves, 0xd8));
}
inline void store_finite(float* to, Sixteen first, Sixteen second) {
  store_sixteen(to, first);
  store_sixteen(to + 16, second);
}
inline void store_finite(uint16_t* to, Sixteen first, Sixteen second) {
  store_finite(to, first);
  store_finite(to + 16, second);
}
#endif
