#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/images/transform.h"

namespace sftrun::images {

/// Fractional bits of weights: Pillow's PRECISION_BITS, which leaves two bits for sums outside 0 to 255.
inline constexpr int kWeightBits = 32 - 8 - 2;

/// What each value of a resized row or column is a weighted sum of.
struct ResizeWeights {
  struct Window {
    int64_t first = 0;  ///< of the values
    int64_t count = 0;
  };
  std::vector<Window> windows;  ///< [size after]
  int64_t stride = 0;  ///< weights of a window; a multiple of 4, those behind `count` are 0
  std::vector<int32_t> values;  ///< [size after, stride], kWeightBits fractional bits

  const int32_t* of(int64_t i) const { return values.data() + i * stride; }
};

ResizeWeights weights_of(int64_t size_before, int64_t size_after, Filter filter);

}  // namespace sftrun::images
