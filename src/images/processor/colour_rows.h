#pragma once

#include <array>
#include <cstdint>

namespace sftrun::images {

/// What each of the 256 levels of each channel becomes.
using ColourTable = std::array<std::array<float, 256>, 3>;

/// How a level x becomes its value, each operation rounded to float32:
///     n = (x * high + x * low) - mean     the sum is a fused multiply-add
///     n / std                             as n * (1 / std), corrected by the remainder
struct ColourFormula {
  float high = 1, low = 0, mean = 0, std = 1;
};

/// Converts rows of RGB pixels to three rows of values. Where the formulas give all 768 values of the table to the bit, and the processor
/// has AVX2 and FMA, values are computed; else they are looked up.
class ColourRows {
 public:
  ColourRows(const ColourTable& table, const std::array<ColourFormula, 3>& formulas);
  bool computes() const { return computes_; }
  const ColourTable& table() const { return table_; }
  /// One row of `count` pixels to three places.
  void write(const uint8_t* from, int64_t count, float* red, float* green, float* blue) const;

 private:
  ColourTable table_;
  std::array<ColourFormula, 3> formulas_;
  bool computes_ = false;
};

}  // namespace sftrun::images
