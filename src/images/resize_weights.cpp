// Compiled without fused multiply-adds: bit-equal to Pillow, which rounds after every operation.
#include "resize_weights.h"

#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::images {
namespace {

double box_weight(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double bilinear_weight(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming_weight(double x) {
  x = std::abs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x = x * M_PI;
  return std::sin(x) / x * (0.54F + 0.46F * std::cos(x));  // Pillow's constants are of fp32
}

/// Keys, Cubic convolution interpolation for digital image processing (1981), with a = -0.5.
double bicubic_weight(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x = x * M_PI;
  return std::sin(x) / x;
}
double lanczos_weight(double x) {
  return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct FilterKernel {
  double (*weight)(double);
  double support;  ///< weights are 0 beyond it
};
FilterKernel kernel_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return {box_weight, 0.5};
    case Filter::kBilinear:
      return {bilinear_weight, 1.0};
    case Filter::kHamming:
      return {hamming_weight, 1.0};
    case Filter::kBicubic:
      return {bicubic_weight, 2.0};
    case Filter::kLanczos:
      return {lanczos_weight, 3.0};
    case Filter::kNearest:
      break;
  }
  SFTRUN_CHECK(false);
  return {};
}

/// As Pillow rounds: numbers below 0 towards 0, where the image begins.
int64_t window_edge(double place) {
  return static_cast<int64_t>(place + 0.5);  // NOLINT(bugprone-incorrect-roundings)
}

int32_t fixed_point(double weight) {
  const double scaled = weight * (1 << kWeightBits);
  return static_cast<int32_t>(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

}  // namespace

ResizeWeights weights_of(int64_t size_before, int64_t size_after, Filter filter) {
  const FilterKernel kernel = kernel_of(filter);
  const double scale = static_cast<double>(size_before) / static_cast<double>(size_after);
  const double filter_scale = scale < 1.0 ? 1.0 : scale;
  const double support = kernel.support * filter_scale, inverse = 1.0 / filter_scale;
  ResizeWeights result;
  result.windows.resize(static_cast<size_t>(size_after));
  const auto most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  result.stride = (most + 3) / 4 * 4;
  result.values.resize(static_cast<size_t>(size_after * result.stride));
  std::vector<double> weights(static_cast<size_t>(most));
  for (int64_t i = 0; i < size_after; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(window_edge(centre - support), 0);
    const auto end = std::min(window_edge(centre + support), size_before);
    double sum = 0.0;
    for (int64_t j = 0; j < end - first; ++j) {
      weights[static_cast<size_t>(j)] =
          kernel.weight((static_cast<double>(j + first) - centre + 0.5) * inverse);
      sum += weights[static_cast<size_t>(j)];
    }
    int32_t* fixed = result.values.data() + i * result.stride;
    for (int64_t j = 0; j < end - first; ++j) {
      const double weight = weights[static_cast<size_t>(j)];
      fixed[j] = fixed_point(sum != 0.0 ? weight / sum : weight);
    }
    result.windows[static_cast<size_t>(i)] = {first, end - first};
  }
  return result;
}

}  // namespace sftrun::images
