// What eight bits stand for: int8 with a factor, and e4m3fn: 1 of sign, 4 of exponent (bias 7), 3
// of mantissa, no infinities (arXiv:2209.05433, section 3). To be included in a namespace of one's
// own: each instruction set and CUDA have their own. C++17. Needs <cstdint> and <cstring>.

#ifdef __CUDACC__
#define SFTRUN_EIGHT_BITS __host__ __device__ inline
#else
#define SFTRUN_EIGHT_BITS inline
#endif

constexpr float kLargestE4m3 = 448.0F;
constexpr float kInverse127 = 7.874015718698502e-3F;

/// Of 127 steps to a row's largest magnitude, in the order of bitsandbytes'
/// int8_vectorwise_dequant.
SFTRUN_EIGHT_BITS float int8_value(uint8_t code, float factor) {
  return static_cast<float>(static_cast<int8_t>(code)) * factor * kInverse127;
}

SFTRUN_EIGHT_BITS uint32_t e4m3_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

SFTRUN_EIGHT_BITS float e4m3_value(uint8_t code) {
  const uint32_t sign = (code & 0x80U) << 24, magnitude = code & 0x7fU;
  // Below 2^-6 a step is 2^-9. (Not by way of subnormal floats, which processors are slow with.)
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0.001953125F;
  const uint32_t normal = (magnitude << 20) + (120U << 23),
                 other = magnitude < 8 ? e4m3_bits_of(small) : normal,
                 bits = (magnitude == 0x7fU ? 0x7fc00000U : other) | sign;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/// Rounded to nearest even.   @pre |x| <= 448, or not a number
SFTRUN_EIGHT_BITS uint8_t e4m3_code(float x) {
  const uint32_t bits = e4m3_bits_of(x), sign = (bits >> 24) & 0x80U,
                 magnitude = bits & 0x7fffffffU;
  // Normal: the exponent's bias from 127 to 7, 20 bits of the mantissa rounded away.
  const uint32_t normal = (magnitude - (120U << 23) + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20;
  // Below 2^-6 a step is 2^-9, which is that of floats from 2^14 on.
  constexpr float kSteps = 16384.0F;
  const float shifted = (x < 0 ? -x : x) + kSteps;
  const uint32_t small = e4m3_bits_of(shifted) - e4m3_bits_of(kSteps);
  const uint32_t code = magnitude < 0x3c800000U ? small : normal;
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000U ? 0x7fU : code));
}

/// Of a row whose largest magnitude is this: codes are of x / factor. Never 0, which a magnitude
/// too small for fp32 to have a 448th of would give.
SFTRUN_EIGHT_BITS float e4m3_factor(float largest) {
  const float factor = largest / kLargestE4m3;
  return factor > 0 ? factor : 1.0F / kLargestE4m3;
}

/// Cut to what there is, so that rounding leaves no infinity (which e4m3 lacks).
SFTRUN_EIGHT_BITS uint8_t e4m3_code_cut(float x) {
  const float below = x > kLargestE4m3 ? kLargestE4m3 : x;
  return e4m3_code(below < -kLargestE4m3 ? -kLargestE4m3 : below);
}
