#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace sftrun {

/// Compares magnitudes as integers, because those of infinities and NaNs are the largest.
/// Memory-bound.
inline bool all_finite(std::span<const float> values) {
  constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  int32_t largest = 0;
  for (const float& value : values) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    largest = std::max(largest, bits & kMagnitude);
  }
  return largest < kInfinity;
}

}  // namespace sftrun
