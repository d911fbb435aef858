#pragma once

#include <bit>
#include <cstdint>

/// fp16 conversions in a form that compilers vectorise. core/dtype.h has readable ones; a test
/// compares both.
namespace sftrun::weights {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffU) << 13;
  const uint32_t normal = magnitude + (112U << 23);
  const uint32_t special = magnitude | 0x7f800000U;
  // Subnormal: the mantissa counts units of 2^-24. Set an exponent of 2^-14, then subtract 2^-14.
  const float small =
      std::bit_cast<float>(magnitude + (113U << 23)) - std::bit_cast<float>(113U << 23);
  uint32_t bits = magnitude < (1U << 23) ? std::bit_cast<uint32_t>(small) : normal;
  bits = magnitude >= (31U << 23) ? special : bits;
  return std::bit_cast<float>(bits | sign);
}

/// Rounds to nearest even; NaN becomes the quiet NaN of its sign.
inline uint16_t float_to_half(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t bits = all & 0x7fffffffU;
  const uint32_t normal = (bits + 0xfffU + ((bits >> 13) & 1U) - (112U << 23)) >> 13;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5F) - 0x3f000000U;
  const uint32_t special = bits > 0x7f800000U ? 0x7e00U : 0x7c00U;
  uint32_t half = bits < 0x38800000U ? small : normal;
  half = bits >= 0x477ff000U ? special : half;
  return static_cast<uint16_t>(half | ((all >> 16) & 0x8000U));
}

}  // namespace sftrun::weights
