// 8-bit values: int8 with a scale, and e4m3fn, which has 1 sign bit, 4 exponent bits (bias 7), 3
// mantissa bits and no infinities (arXiv:2209.05433, section 3). Include it in a separate namespace
// for each instruction set and for CUDA. C++17. Needs <cstdint> and <cstring>.

#ifdef __CUDACC__
#define SFTRUN_EIGHT_BITS __host__ __device__ inline
#else
#define SFTRUN_EIGHT_BITS inline
#endif

constexpr float kLargestE4m3 = 448.0F;
constexpr float kInverse127 = 7.874015718698502e-3F;

/// code * scale / 127, where `scale` is the row's largest magnitude; same order of operations as
/// bitsandbytes' int8_vectorwise_dequant.
SFTRUN_EIGHT_BITS float int8_value(uint8_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale * kInverse127;
}

SFTRUN_EIGHT_BITS uint32_t e4m3_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

SFTRUN_EIGHT_BITS float e4m3_value(uint8_t code) {
  const uint32_t sign = (code & 0x80U) << 24, magnitude = code & 0x7fU;
  // Below 2^-6 the step is 2^-9. Computed without subnormal floats, which are slow.
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0.001953125F;
  const uint32_t normal = (magnitude << 20) + (120U << 23),
                 other = magnitude < 8 ? e4m3_bits_of(small) : normal,
                 bits = (magnitude == 0x7fU ? 0x7fc00000U : other) | sign;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/// Rounds to nearest even.   @pre |x| <= 448, or NaN
SFTRUN_EIGHT_BITS uint8_t e4m3_code(float x) {
  const uint32_t bits = e4m3_bits_of(x), sign = (bits >> 24) & 0x80U,
                 magnitude = bits & 0x7fffffffU;
  // Normal numbers: changes the exponent's bias from 127 to 7 and rounds 20 bits of the mantissa
  // away.
  const uint32_t normal = (magnitude - (120U << 23) + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20;
  // Below 2^-6 the step is 2^-9, which is that of floats from 2^14 on.
  constexpr float kSteps = 16384.0F;
  const float shifted = (x < 0 ? -x : x) + kSteps;
  const uint32_t small = e4m3_bits_of(shifted) - e4m3_bits_of(kSteps);
  const uint32_t code = magnitude < 0x3c800000U ? small : normal;
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000U ? 0x7fU : code));
}

/// The scale of a row with this largest magnitude; codes are those of x / scale. Never 0, even if
/// the magnitude is too small for fp32 to represent a 448th of it.
SFTRUN_EIGHT_BITS float e4m3_scale(float largest) {
  const float scale = largest / kLargestE4m3;
  return scale > 0 ? scale : 1.0F / kLargestE4m3;
}

/// Saturating conversion: e4m3 has no infinity.
SFTRUN_EIGHT_BITS uint8_t e4m3_code_cut(float x) {
  const float below = x > kLargestE4m3 ? kLargestE4m3 : x;
  return e4m3_code(below < -kLargestE4m3 ? -kLargestE4m3 : below);
}
