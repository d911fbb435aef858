#pragma once

#include "resize_weights.h"

namespace sftrun::images {

// The two passes of a resize. Weights are split as weight = (high << kLowBits) + low, so that products of two values at a time are sums
// of 16-bit products; the sum of 32 bits is the same number.
inline constexpr int kLowBits = 11;

/// Rows of RGB pixels with a distance in bytes.
struct ConstRows {
  const uint8_t* data;
  int64_t stride;
  const uint8_t* row(int64_t y) const { return data + y * stride; }
};
struct Rows {
  uint8_t* data;
  int64_t stride;
  uint8_t* row(int64_t y) const { return data + y * stride; }
};

/// Resizes `height` rows of `width` pixels to rows of as many pixels as `weights` has windows.
void resize_rows(ConstRows from, int64_t width, int64_t height, const ResizeWeights& weights,
                 Rows to);
/// Resizes columns: rows of `bytes` bytes. `first_row`: the number of the row that `from` begins with.
void resize_columns(ConstRows from, int64_t first_row, int64_t bytes, const ResizeWeights& weights,
                    Rows to);

/// The passes for processors with AVX2. False, and nothing is done, on others and with weights outside of 16 bits.
bool resize_rows_avx2(ConstRows from, int64_t width, int64_t height, const ResizeWeights& weights,
                      Rows to);
/// Likewise; does a multiple of 32 bytes of each row, and returns how many.
int64_t resize_columns_avx2(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to);

/// The same for processors with AVX-512's products of bytes (VNNI), and weights below 2 in magnitude.
bool resize_rows_vnni(ConstRows from, int64_t width, int64_t height, const ResizeWeights& weights,
                      Rows to);
int64_t resize_columns_vnni(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to);

// The same in plain C++, which the tests compare with. Columns from the byte `begin` on.
void resize_rows_plain(ConstRows from, int64_t height, const ResizeWeights& weights, Rows to);
void resize_columns_plain(ConstRows from, int64_t first_row, int64_t begin, int64_t bytes,
                          const ResizeWeights& weights, Rows to);

}  // namespace sftrun::images
