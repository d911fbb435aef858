#pragma once

#include <cmath>
#include <span>

namespace sftrun {

/// @return 0 of no values
inline double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Standard deviation of a sample (n - 1).   @param mean of the values   @return 0 of a single one
inline double sample_deviation(std::span<const double> values, double mean) {
  if (values.size() < 2) return 0;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace sftrun
