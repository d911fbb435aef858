#include "mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "sftrun/core/error.h"
#include "sftrun/weights/ggml_type.h"
#include "sftrun/weights/packed.h"

namespace sftrun::weights {

namespace {

#include "sftrun/weights/ggml_blocks.inl"

}  // namespace

void require_numbers(std::span<const std::byte> mxfp4_exponents, const std::string& name) {
  const auto none = std::find(mxfp4_exponents.begin(), mxfp4_exponents.end(), std::byte{255});
  if (none == mxfp4_exponents.end()) return;
  throw DataError(fmt::format("MXFP4 tensor `{}`: the scale of block {} is NaN", name,
                              none - mxfp4_exponents.begin()),
                  {}, "download or copy the model again");
}

void decode_mxfp4(const Mxfp4Blocks& blocks, int64_t first, std::vector<float>& out) {
  const auto count = static_cast<int64_t>(out.size()) / kMxfp4Block;
  float* to = out.data();
  for (int64_t block = first; block < first + count; ++block) {
    const float scale =
        ggml::mxfp4_scale(static_cast<uint8_t>(blocks.exponents[static_cast<size_t>(block)]));
    const std::byte* codes = blocks.codes.data() + block * kMxfp4Block / 2;
    for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
      const auto byte = static_cast<uint8_t>(codes[i]);
      *to++ = ggml::mxfp4_value(byte & 15) * scale;
      *to++ = ggml::mxfp4_value(byte >> 4) * scale;
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
