#include <algorithm>
#include <cmath>
#include <numbers>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

/// transformers' modeling_rope_utils.py in the same order of fp32 operations; powers are rounded
/// once from fp64, within one unit in the last place of torch's.
namespace sftrun::spec {
namespace {

float power(double base, double exponent) {
  return static_cast<float>(std::pow(base, exponent));
}

/// theta ** (2 i / head_dim)
std::vector<float> position_frequencies(float theta, int64_t head_dim) {
  std::vector<float> result;
  for (int64_t i = 0; i < head_dim; i += 2) {
    result.push_back(power(theta, static_cast<float>(i) / static_cast<float>(head_dim)));
  }
  return result;
}

std::vector<float> plain_frequencies(float theta, int64_t head_dim) {
  std::vector<float> result = position_frequencies(theta, head_dim);
  for (float& value : result) value = 1.0F / value;
  return result;
}

std::vector<float> linear(const ArchSpec& arch) {
  std::vector<float> result = plain_frequencies(static_cast<float>(arch.rope.theta), arch.head_dim);
  for (float& value : result) value /= static_cast<float>(arch.rope.factor);
  return result;
}

double original_positions(const ArchSpec& arch) {
  const int64_t original = arch.rope.original_max_position_embeddings;
  return static_cast<double>(original > 0 ? original : arch.max_position_embeddings);
}

/// NTK-aware scaling that grows with the sequence; no effect up to max_position_embeddings.
std::vector<float> dynamic(const ArchSpec& arch, int64_t seq_len) {
  const auto theta = static_cast<float>(arch.rope.theta);
  if (seq_len <= arch.max_position_embeddings) return plain_frequencies(theta, arch.head_dim);
  const auto factor = static_cast<float>(arch.rope.factor);
  const float stretch =
      factor * static_cast<float>(seq_len) / static_cast<float>(arch.max_position_embeddings) -
      static_cast<float>(arch.rope.factor - 1.0);
  const double exponent =
      static_cast<double>(arch.head_dim) / static_cast<double>(arch.head_dim - 2);
  return plain_frequencies(theta * power(stretch, exponent), arch.head_dim);
}

/// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between blended.
std::vector<float> llama3(const ArchSpec& arch) {
  const RopeSpec& rope = arch.rope;
  const auto factor = static_cast<float>(rope.factor);
  const double original = original_positions(arch);
  const auto low_wavelength = static_cast<float>(original / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(original / rope.high_freq_factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  std::vector<float> result = plain_frequencies(static_cast<float>(rope.theta), arch.head_dim);
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

/// The dimensions between which YaRN blends (arXiv:2309.00071, section 3.2).
Range yarn_correction_range(const ArchSpec& arch) {
  const auto dim = static_cast<double>(arch.head_dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(original_positions(arch) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(arch.rope.theta));
  };
  Range range{dimension_of(arch.rope.beta_fast), dimension_of(arch.rope.beta_slow)};
  if (arch.rope.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, dim - 1)};
  if (range.low == range.high) range.high += 0.001;
  return range;
}

std::vector<float> yarn(const ArchSpec& arch) {
  const Range range = yarn_correction_range(arch);
  const auto low = static_cast<float>(range.low),
             width = static_cast<float>(range.high - range.low);
  const auto factor = static_cast<float>(arch.rope.factor);
  std::vector<float> result =
      position_frequencies(static_cast<float>(arch.rope.theta), arch.head_dim);
  for (size_t i = 0; i < result.size(); ++i) {
    const float extrapolation = 1.0F / result[i], interpolation = 1.0F / (factor * result[i]);
    const float ramp = std::clamp((static_cast<float>(i) - low) / width, 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    result[i] = interpolation * (1.0F - kept) + extrapolation * kept;
  }
  return result;
}

std::vector<float> inverse_frequencies(const ArchSpec& arch, int64_t seq_len) {
  switch (arch.rope.type) {
    case RopeType::kDefault:
      return plain_frequencies(static_cast<float>(arch.rope.theta), arch.head_dim);
    case RopeType::kLinear:
      return linear(arch);
    case RopeType::kDynamic:
      return dynamic(arch, seq_len);
    case RopeType::kYarn:
      return yarn(arch);
    case RopeType::kLlama3:
      return llama3(arch);
  }
  invariant_failed(__FILE__, __LINE__, "every RopeType has a table");
}

}  // namespace

RopeTable rope_table(const ArchSpec& arch, int64_t seq_len) {
  RopeTable table;
  table.inv_freq = inverse_frequencies(arch, seq_len);
  for (size_t i = 0; i < arch.rope.divisors.size(); ++i) table.inv_freq[i] /= arch.rope.divisors[i];
  if (arch.rope.type == RopeType::kYarn) {
    table.attention_scaling = static_cast<float>(yarn_attention_factor(arch.rope));
  }
  return table;
}

}  // namespace sftrun::spec
