#pragma once

#include <cstdint>
#include <cstring>

// To be included inside the namespace of one instruction set.

// For functions that receive accumulators by address, which stay in registers only when inlined.
#define SFTRUN_INLINE __attribute__((always_inline)) inline

inline float load(const float* p) {
  return *p;
}
inline void store(float* p, float value) {
  *p = value;
}

inline float load(const uint16_t* p) {
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  return __builtin_bit_cast(float, bits);
}
// Rounds to nearest even without a branch, so that loops vectorise; NaN becomes a quiet NaN.
inline void store(uint16_t* p, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  *p = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded);
}

#ifdef __AVX512F__
// Rounds to bf16 as `store`; results are in the high halves.   @pre no value is NaN
inline __m512i finite_to_bf16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values),
                below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  return _mm512_mask_add_epi32(below_half, is_odd, below_half, _mm512_set1_epi32(1));
}
inline __m512i to_bf16(__m512 values) {
  return _mm512_mask_mov_epi32(finite_to_bf16(values),
                               _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7fc00000));
}
// The high halves of `first`, then those of `second`.
inline __m512i high_halves(__m512i first, __m512i second) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(kOdd), second);
}

inline void store_sixteen(float* to, __m512 values) {
  _mm512_storeu_ps(to, values);
}
inline void store_sixteen(uint16_t* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(to_bf16(values), 16)));
}
inline void store_thirty_two(float* to, __m512 first, __m512 second) {
  _mm512_storeu_ps(to, first);
  _mm512_storeu_ps(to + 16, second);
}
inline void store_thirty_two(uint16_t* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, high_halves(to_bf16(first), to_bf16(second)));
}
// The same for values without NaN.
inline void store_finite(float* to, __m512 first, __m512 second) {
  store_thirty_two(to, first, second);
}
inline void store_finite(uint16_t* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, high_halves(finite_to_bf16(first), finite_to_bf16(second)));
}
#endif

// exp with an error of about 1 ulp on [-87, 88] (Cephes' polynomial); arguments are clamped to this
// range. Vectorises on every instruction set, unlike libm's.
inline float exp_fast(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kLog2e = 1.44269504088896341F, kRoundMagic = 12582912.0F;  // 1.5 * 2^23
  const float n = (x * kLog2e + kRoundMagic) - kRoundMagic;
  float r = x - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const uint32_t power = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  return p * __builtin_bit_cast(float, power);
}

inline float sigmoid_fast(float x) {
  return 1.0F / (1.0F + exp_fast(-x));
}

// Absolute error about 1e-7; for small x mostly from the cancellation.
inline float tanh_fast(float x) {
  return 1.0F - 2.0F / (1.0F + exp_fast(2.0F * x));
}
