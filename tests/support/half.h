#pragma once

#include <cstdint>
#include <cstring>

/// Conversions of half precision that are easy to read: what the fast ones are compared with.
namespace sftrun::test {

inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fU, mantissa = bits & 0x3ffU, wide;
  if (exponent == 0x1f) {
    wide = sign | 0x7f800000U | mantissa << 13;
  } else if (exponent != 0) {
    wide = sign | (exponent + 112) << 23 | mantissa << 13;
  } else if (mantissa == 0) {
    wide = sign;
  } else {  // subnormal: shift the leading one into place
    exponent = 113;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    wide = sign | exponent << 23 | (mantissa & 0x3ffU) << 13;
  }
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

/// Rounds to nearest even.
inline uint16_t f32_to_f16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  bits &= 0x7fffffffU;
  if (bits > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (bits >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // rounds to 65536 or more
  if (bits < 0x38800000U) {                                               // subnormal half or zero
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5F;  // aligns the half's last bit with the float's; addition rounds to even
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000U));
  }
  bits += 0xfffU + ((bits >> 13) & 1U) - (112U << 23);
  return static_cast<uint16_t>(sign | bits >> 13);
}

}  // namespace sftrun::test
