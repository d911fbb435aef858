#include <algorithm>
#include <cmath>
#include <numbers>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

/// Mirrors transformers' modeling_rope_utils.py with the same order of fp32 operations. Powers are
/// computed in fp64 and rounded once, within one unit in the last place of torch's.
namespace sftrun::spec {
namespace {

float power(double base, double exponent) {
  return static_cast<float>(std::pow(base, exponent));
}

/// theta ** (2 i / dim)
std::vector<float> position_frequencies(float theta, int64_t dim) {
  std::vector<float> result;
  for (int64_t i = 0; i < dim; i += 2) {
    result.push_back(power(theta, static_cast<float>(i) / static_cast<float>(dim)));
  }
  return result;
}

std::vector<float> plain_frequencies(float theta, int64_t dim) {
  std::vector<float> result = position_frequencies(theta, dim);
  for (float& value : result) value = 1.0F / value;
  return result;
}

std::vector<float> linear(const RopeSpec& rope) {
  std::vector<float> result = plain_frequencies(static_cast<float>(rope.theta), rope.rotary_dim);
  for (float& value : result) value /= static_cast<float>(rope.factor);
  return result;
}

double original_positions(const RopeSpec& rope) {
  const int64_t original = rope.original_max_position_embeddings;
  return static_cast<double>(original > 0 ? original : rope.max_position_embeddings);
}

/// NTK-aware scaling by sequence length; no effect up to max_position_embeddings.
std::vector<float> dynamic(const RopeSpec& rope, int64_t seq_len) {
  const auto theta = static_cast<float>(rope.theta);
  if (seq_len <= rope.max_position_embeddings) return plain_frequencies(theta, rope.rotary_dim);
  const auto factor = static_cast<float>(rope.factor);
  const float stretch =
      factor * static_cast<float>(seq_len) / static_cast<float>(rope.max_position_embeddings) -
      static_cast<float>(rope.factor - 1.0);
  const double exponent =
      static_cast<double>(rope.rotary_dim) / static_cast<double>(rope.rotary_dim - 2);
  return plain_frequencies(theta * power(stretch, exponent), rope.rotary_dim);
}

/// LongRoPE (arXiv:2402.13753): each frequency has a divisor, one set for short and one for long
/// sequences.
std::vector<float> longrope(const RopeSpec& rope, int64_t seq_len) {
  const bool is_long = static_cast<double>(seq_len) > original_positions(rope);
  const std::vector<float>& factors = is_long ? rope.long_factor : rope.short_factor;
  std::vector<float> result = position_frequencies(static_cast<float>(rope.theta), rope.rotary_dim);
  SFTRUN_CHECK_EQ(factors.size(), result.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = 1.0F / (factors[i] * result[i]);
  return result;
}

/// sqrt(1 + ln(factor) / ln(original positions))
double longrope_attention_factor(const RopeSpec& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.factor <= 1.0) return 1.0;
  return std::sqrt(1 + std::log(rope.factor) / std::log(original_positions(rope)));
}

/// Llama 3.1: frequencies of long wavelengths are divided by `factor`, those of short ones kept,
/// those between interpolated.
std::vector<float> llama3(const RopeSpec& rope) {
  const auto factor = static_cast<float>(rope.factor);
  const double original = original_positions(rope);
  const auto low_wavelength = static_cast<float>(original / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(original / rope.high_freq_factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  std::vector<float> result = plain_frequencies(static_cast<float>(rope.theta), rope.rotary_dim);
  for (float& frequency : result) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > low_wavelength) {
      frequency /= factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (static_cast<float>(original) / wavelength - low) / range;
      frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return result;
}

double yarn_magnitude(double scale, double multiplier) {
  return scale <= 1 ? 1.0 : 0.1 * multiplier * std::log(scale) + 1.0;
}

double yarn_attention_factor(const RopeSpec& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale && rope.mscale_all_dim) {
    return yarn_magnitude(rope.factor, *rope.mscale) /
           yarn_magnitude(rope.factor, *rope.mscale_all_dim);
  }
  return yarn_magnitude(rope.factor, 1.0);
}

struct Range {
  double low, high;
};

/// The range of dimensions over which YaRN interpolates (arXiv:2309.00071, section 3.2).
Range yarn_correction_range(const RopeSpec& rope) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(original_positions(rope) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  Range range{dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)};
  if (rope.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, dim - 1)};
  if (range.low == range.high) range.high += 0.001;
  return range;
}

std::vector<float> yarn(const RopeSpec& rope) {
  const Range range = yarn_correction_range(rope);
  const auto low = static_cast<float>(range.low),
             width = static_cast<float>(range.high - range.low);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> result = position_frequencies(static_cast<float>(rope.theta), rope.rotary_dim);
  for (size_t i = 0; i < result.size(); ++i) {
    const float extrapolation = 1.0F / result[i], interpolation = 1.0F / (factor * result[i]);
    const float ramp = std::clamp((static_cast<float>(i) - low) / width, 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    result[i] = interpolation * (1.0F - kept) + extrapolation * kept;
  }
  return result;
}

/// The first frequencies equal those of the whole head; the others are 0 (no rotation).
std::vector<float> proportional(const RopeSpec& rope) {
  std::vector<float> result = linear(rope);
  const auto turning = static_cast<size_t>(rope.partial * static_cast<double>(rope.rotary_dim) / 2);
  std::fill(result.begin() + static_cast<std::ptrdiff_t>(turning), result.end(), 0.0F);
  return result;
}

std::vector<float> inverse_frequencies(const RopeSpec& rope, int64_t seq_len) {
  switch (rope.type) {
    case RopeType::kDefault:
      return plain_frequencies(static_cast<float>(rope.theta), rope.rotary_dim);
    case RopeType::kLinear:
      return linear(rope);
    case RopeType::kDynamic:
      return dynamic(rope, seq_len);
    case RopeType::kYarn:
      return yarn(rope);
    case RopeType::kLlama3:
      return llama3(rope);
    case RopeType::kLongRope:
      return longrope(rope, seq_len);
    case RopeType::kProportional:
      return proportional(rope);
  }
  invariant_failed(__FILE__, __LINE__, "every RopeType has a table");
}

double attention_scaling(const RopeSpec& rope) {
  if (rope.type == RopeType::kYarn) return yarn_attention_factor(rope);
  if (rope.type == RopeType::kLongRope) return longrope_attention_factor(rope);
  return 1.0;
}

}  // namespace

RopeTable rope_table(const RopeSpec& rope, int64_t seq_len) {
  RopeTable table;
  table.inv_freq = inverse_frequencies(rope, seq_len);
  for (size_t i = 0; i < rope.divisors.size(); ++i) table.inv_freq[i] /= rope.divisors[i];
  table.attention_scaling = static_cast<float>(attention_scaling(rope));
  return table;
}

int64_t RopeSpec::axis_of(int64_t i) const {
  const auto axes = static_cast<int64_t>(sections.size());
  if (axes == 0) return 0;
  if (sections_alternate) {
    const int64_t axis = i % axes;
    return axis > 0 && i < axes * sections[static_cast<size_t>(axis)] ? axis : 0;
  }
  int64_t axis = 0;
  for (int64_t end = sections[0]; i >= end && axis + 1 < axes;)
    end += sections[static_cast<size_t>(++axis)];
  return axis;
}

}  // namespace sftrun::spec
