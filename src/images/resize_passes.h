#pragma once

#include <cstddef>
#include <memory>

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

/// Resizes rows: each to as many pixels as the weights have windows.
class RowPass {
 public:
  virtual ~RowPass() = default;
  /// `height` rows of `width` pixels.
  void run(ConstRows from, int64_t width, int64_t height, Rows to) const;

 protected:
  /// @param width_after  pixels of a result
  /// @param read_behind  bytes behind a row that are read, and count for nothing
  RowPass(size_t width_after, int64_t read_behind)
      : width_after_(width_after), read_behind_(read_behind) {}

  static constexpr int64_t kRowsAtOnce = 4;

 private:
  virtual void run_four(const uint8_t* const* rows, uint8_t* const* to) const = 0;

  size_t width_after_;
  int64_t read_behind_;
};

/// The fastest one that the processor has instructions for.
std::unique_ptr<RowPass> row_pass(const ResizeWeights& weights);
/// Plain C++, which the tests compare with.
std::unique_ptr<RowPass> row_pass_plain(const ResizeWeights& weights);
// For processors with AVX2, with AVX-512's products of bytes (VNNI), and also its permutations of bytes (VBMI). None on others, with weights outside
// of 16 bits (AVX2) or of 2 or more in magnitude (the others), and with windows of more than 8 pixels or far from each other (VBMI).
std::unique_ptr<RowPass> row_pass_avx2(const ResizeWeights& weights);
std::unique_ptr<RowPass> row_pass_vnni(const ResizeWeights& weights);
std::unique_ptr<RowPass> row_pass_vbmi(const ResizeWeights& weights);

/// Resizes columns: rows of `bytes` bytes. `first_row`: the number of the row that `from` begins with.
void resize_columns(ConstRows from, int64_t first_row, int64_t bytes, const ResizeWeights& weights,
                    Rows to);
// Likewise with AVX2 and VNNI: does a multiple of 32 bytes of each row, and returns how many. 0 on other processors and with other weights.
int64_t resize_columns_avx2(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to);
int64_t resize_columns_vnni(ConstRows from, int64_t first_row, int64_t bytes,
                            const ResizeWeights& weights, Rows to);
/// In plain C++, from the byte `begin` on.
void resize_columns_plain(ConstRows from, int64_t first_row, int64_t begin, int64_t bytes,
                          const ResizeWeights& weights, Rows to);

}  // namespace sftrun::images
