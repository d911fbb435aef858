#include "mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace sftrun::weights {

float mxfp4_value(uint8_t code) {
  static constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                    4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                                    -2.0F, -3.0F, -4.0F, -6.0F};
  return kValues[code & 15U];
}

float mxfp4_scale(uint8_t exponent) {
  return std::ldexp(1.0F, static_cast<int>(exponent) - 127);
}

void decode_mxfp4(const Mxfp4Blocks& blocks, int64_t first, std::vector<float>& out) {
  const auto count = static_cast<int64_t>(out.size()) / kMxfp4Block;
  float* to = out.data();
  for (int64_t block = first; block < first + count; ++block) {
    const float scale =
        mxfp4_scale(static_cast<uint8_t>(blocks.exponents[static_cast<size_t>(block)]));
    const std::byte* codes = blocks.codes.data() + block * kMxfp4Block / 2;
    for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
      const auto byte = static_cast<uint8_t>(codes[i]);
      *to++ = mxfp4_value(byte) * scale;
      *to++ = mxfp4_value(byte >> 4U) * scale;
    }
  }
}

FileLayout mxfp4_layout(const FileLayout& dense) {
  FileLayout packed = dense;
  std::rotate(packed.order.begin() + 1, packed.order.begin() + 2, packed.order.end());
  std::rotate(packed.shape.begin() + 1, packed.shape.begin() + 2, packed.shape.end());
  return packed;
}

}  // namespace sftrun::weights
