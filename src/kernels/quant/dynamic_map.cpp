#include "sftrun/kernels/dynamic_map.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels {
namespace {

constexpr int kExponents = 7;
constexpr int64_t kNumCodes = 256, kNumSteps = kStateSteps;

/// Midpoints of equally spaced bounds in [0.1, 1], scaled by powers of ten, in fp32 as in
/// bitsandbytes.
at::Tensor make_values(bool is_signed) {
  std::vector<float> values = {0.0F, 1.0F};
  for (int i = 0; i < kExponents; ++i) {
    const int64_t count = int64_t{1} << (is_signed ? i : i + 1);
    const at::Tensor bounds = at::linspace(0.1, 1, count + 1, at::kFloat);
    const at::Tensor means = (bounds.narrow(0, 0, count) + bounds.narrow(0, 1, count)) / 2.0;
    const at::Tensor scaled = means * std::pow(10.0, i - (kExponents - 1));
    for (const float value :
         std::span(scaled.const_data_ptr<float>(), static_cast<size_t>(count))) {
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  at::Tensor map = at::empty({kNumCodes}, at::kFloat);
  std::copy(values.begin(), values.end(), map.data_ptr<float>());
  return map;
}

at::Tensor make_codes(const at::Tensor& values) {
  const std::span<const float> of_code(values.const_data_ptr<float>(), kNumCodes);
  at::Tensor codes = at::empty({kNumSteps}, at::kByte);
  size_t best = 0;  // `best` only increases, as x and the values ascend
  for (int64_t i = 0; i < kNumSteps; ++i) {
    const float x = static_cast<float>(i) / (kNumSteps - 1) * 2.0F - 1.0F;
    while (best + 1 < of_code.size() &&
           std::abs(x - of_code[best + 1]) < std::abs(x - of_code[best]))
      ++best;
    codes.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(best);
  }
  return codes;
}

at::Tensor make_tree(const at::Tensor& codes) {
  constexpr int64_t kLevels = 8;
  const std::span<const uint8_t> of_step(codes.const_data_ptr<uint8_t>(), kNumSteps);
  at::Tensor tree = at::zeros({kStateTree}, at::kShort);
  auto* bounds = static_cast<uint16_t*>(tree.data_ptr());
  for (int64_t level = 0; level < kLevels; ++level) {
    const int64_t half = int64_t{1} << (kLevels - 1 - level);
    for (int64_t i = 0; i < int64_t{1} << level; ++i) {
      const auto code = static_cast<uint8_t>(2 * half * i + half);
      const auto first = std::lower_bound(of_step.begin(), of_step.end(), code);
      bounds[(level < kLevels - 1 ? 32 * level : 256) + i] =
          static_cast<uint16_t>(first - of_step.begin());
    }
  }
  return tree;
}

DynamicMap make_map(bool is_signed) {
  const at::Tensor values = make_values(is_signed), codes = make_codes(values);
  return {values, codes, make_tree(codes)};
}

}  // namespace

DynamicMap DynamicMap::to(at::Device device) const {
  return {values.to(device), codes.to(device), tree.to(device)};
}

const DynamicMap& dynamic_map(bool is_signed) {
  static const DynamicMap with_sign = make_map(true), without = make_map(false);
  return is_signed ? with_sign : without;
}

}  // namespace sftrun::kernels
