#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run_record.h"

/// The curves of a report, as page.js draws them.
namespace sftrun::observe {

struct Curve {
  size_t run = 0;  ///< index of the run
  std::string label;
  std::vector<int64_t> steps;  ///< ascending
  std::vector<double> values;  ///< NaN: none, the line has a gap
  bool has_dots = false;       ///< few values far apart, as of evaluations
};

/// A value that is drawn as a horizontal line.
struct Level {
  size_t run = 0;
  std::string label;
  double value = 0;
};

struct Chart {
  std::string id, title, about;
  std::string unit;              ///< "", "bytes", "seconds", "percent" or "count"
  bool may_be_smoothed = false;  ///< and shown on a logarithmic axis
  bool is_stacked = false;       ///< the curves are parts of a sum
  std::vector<Curve> curves;
  std::vector<Level> levels;
};

/// Charts with at least one value.
std::vector<Chart> make_charts(const std::vector<RunRecord>& runs);

/// Rows of a column to draw: all, or of many the lowest and the highest of each of equal ranges, in
/// order. The last row is always among them.
std::vector<size_t> rows_to_draw(const std::vector<double>& values);
/// Ranges of `rows_to_draw`. A screen has fewer pixels.
inline constexpr size_t kDrawnRanges = 2000;

/// What page.js reads: charts, runs, and tokens and time of their steps. Safe inside <script>.
std::string charts_json(const std::vector<Chart>& charts, const std::vector<RunRecord>& runs);

}  // namespace sftrun::observe
