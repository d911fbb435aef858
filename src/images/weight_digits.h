#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resize_weights.h"

namespace sftrun::images {

/// Weights of four values as three digits: weight = (high << 16) + (middle << 8) + low, each digit a signed byte. A product of digits and
/// values is one instruction (vpdpbusd), and the sum of 32 bits is the same number.
struct FourWeights {
  int32_t high = 0, middle = 0, low = 0;
};

inline bool fits_in_digits(const ResizeWeights& weights) {
  constexpr int32_t kMost = 127 << 16;
  return std::all_of(weights.values.begin(), weights.values.end(),
                     [](int32_t weight) { return weight >= -kMost && weight < kMost; });
}

/// @param count  of weights; those behind it are 0
inline FourWeights digits_of(const int32_t* weights, int64_t count) {
  int8_t digits[3][4] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) {
    digits[2][i] = static_cast<int8_t>(weights[i] & 0xFF);
    const int32_t rest = (weights[i] - digits[2][i]) >> 8;
    digits[1][i] = static_cast<int8_t>(rest & 0xFF);
    digits[0][i] = static_cast<int8_t>((rest - digits[1][i]) >> 8);
  }
  FourWeights four;
  std::memcpy(&four.high, digits[0], 4);
  std::memcpy(&four.middle, digits[1], 4);
  std::memcpy(&four.low, digits[2], 4);
  return four;
}

/// What the sum of the high digits begins with: half of the last bit that remains, for rounding.
inline constexpr int32_t kHalfOfHighDigits = 1 << (kWeightBits - 1 - 16);

}  // namespace sftrun::images
