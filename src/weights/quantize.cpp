#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "half.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/gguf_quantize.h"

/// Bit-equal to ggml's reference quantisers (ggml/src/ggml-quants.c): fp32, with their order of
/// operations. Layouts: ggml_blocks.inl. Compiled without contraction, because a fused multiply-add
/// would round once where the reference rounds twice.
namespace sftrun::weights {
namespace {

constexpr int kBlock = 32;   ///< values per block of the simple formats
constexpr int kSuper = 256;  ///< values per block of the K formats

void put_half(std::byte* at, float value) {
  const uint16_t half = float_to_half(value);
  std::memcpy(at, &half, 2);
}

/// The value after rounding to fp16.
float as_stored(float value) {
  return half_to_float(float_to_half(value));
}

std::byte byte_of(int value) {
  return static_cast<std::byte>(static_cast<uint8_t>(value));
}

/// Values 0..15 in the low nibbles, 16..31 in the high ones.
void put_nibbles(const std::array<int, kBlock>& codes, std::byte* at) {
  for (int i = 0; i < kBlock / 2; ++i)
    at[i] = byte_of((codes[i] & 15) | (codes[i + kBlock / 2] & 15) << 4);
}

void put_fifth_bits(const std::array<int, kBlock>& codes, std::byte* at) {
  uint32_t bits = 0;
  for (int i = 0; i < kBlock; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4) << i;
  std::memcpy(at, &bits, 4);
}

float inverse(float factor) {
  return factor != 0 ? 1.0F / factor : 0.0F;
}

/// The value with the largest magnitude, with its sign; the first one of several.
float largest(const float* in) {
  float result = 0, magnitude = 0;
  for (int i = 0; i < kBlock; ++i) {
    if (magnitude >= std::abs(in[i])) continue;
    magnitude = std::abs(in[i]);
    result = in[i];
  }
  return result;
}

/// Symmetric codes: the largest magnitude becomes the lowest code.   @return the scale
template <int kLevels>
float centred(const float* in, std::array<int, kBlock>& codes) {
  constexpr int kMiddle = kLevels / 2;
  const float factor = largest(in) / -kMiddle, scale = inverse(factor);
  for (int i = 0; i < kBlock; ++i) {
    const auto code = static_cast<int>(in[i] * scale + (static_cast<float>(kMiddle) + 0.5F));
    codes[i] = std::min(kLevels - 1, code);
  }
  return factor;
}

struct Range {
  float factor, lowest;
};

/// Codes from the minimum to the maximum.
template <int kLevels>
Range ranged(const float* in, std::array<int, kBlock>& codes) {
  const auto [lowest, highest] = std::minmax_element(in, in + kBlock);
  const Range range{(*highest - *lowest) / (kLevels - 1), *lowest};
  const float scale = inverse(range.factor);
  for (int i = 0; i < kBlock; ++i) {
    const auto code = static_cast<int>((in[i] - range.lowest) * scale + 0.5F);
    codes[i] = std::min(kLevels - 1, code);
  }
  return range;
}

void q4_0(const float* in, std::byte* block) {
  std::array<int, kBlock> codes;
  put_half(block, centred<16>(in, codes));
  put_nibbles(codes, block + 2);
}

void q4_1(const float* in, std::byte* block) {
  std::array<int, kBlock> codes;
  const Range range = ranged<16>(in, codes);
  put_half(block, range.factor);
  put_half(block + 2, range.lowest);
  put_nibbles(codes, block + 4);
}

void q5_0(const float* in, std::byte* block) {
  std::array<int, kBlock> codes;
  put_half(block, centred<32>(in, codes));
  put_fifth_bits(codes, block + 2);
  put_nibbles(codes, block + 6);
}

void q5_1(const float* in, std::byte* block) {
  std::array<int, kBlock> codes;
  const Range range = ranged<32>(in, codes);
  put_half(block, range.factor);
  put_half(block + 2, range.lowest);
  put_fifth_bits(codes, block + 4);
  put_nibbles(codes, block + 8);
}

void q8_0(const float* in, std::byte* block) {
  const float factor = std::abs(largest(in)) / 127, scale = inverse(factor);
  put_half(block, factor);
  for (int i = 0; i < kBlock; ++i)
    block[2 + i] = byte_of(static_cast<int>(std::round(in[i] * scale)));
}

/// Rounds to nearest, halves to even, for magnitudes below 2^22.
int nearest(float value) {
  const auto bits = std::bit_cast<int32_t>(value + 12582912.0F);  // 1.5 * 2^23, where the step is 1
  return (bits & 0x007fffff) - 0x00400000;
}

using Codes = std::array<uint8_t, kSuper>;

/// A group of 32 values scale * code - minimum, with codes 0 to `levels` - 1.
struct Group {
  float scale = 0, minimum = 0;
};

/// Search for a group's scale: tries `steps` + 1 further scales, starting with `first`.
struct Search {
  int levels;
  float first;
  int steps;
};

/// Sums over a group that every tried scale uses.
class GroupSearch {
 public:
  /// Weight of each value: root mean square of the group plus its magnitude.
  explicit GroupSearch(const float* in) : in_(in) {
    float squares = 0;
    for (int i = 0; i < kBlock; ++i) squares += in[i] * in[i];
    const float mean = std::sqrt(squares / kBlock);
    for (int i = 0; i < kBlock; ++i) weights_[i] = mean + std::abs(in[i]);
    lowest_ = highest_ = in[0];
    sum_weights_ = weights_[0];
    sum_numbers_ = weights_[0] * in[0];
    for (int i = 1; i < kBlock; ++i) {
      lowest_ = std::min(lowest_, in[i]);
      highest_ = std::max(highest_, in[i]);
      sum_weights_ += weights_[i];
      sum_numbers_ += weights_[i] * in[i];
    }
    lowest_ = std::min(lowest_, 0.0F);
  }

  /// Each try starts from the minimum of the best one before it.
  /// @param[out] kept codes of the best try
  Group best(const Search& search, uint8_t* kept) const {
    std::fill_n(kept, kBlock, uint8_t{0});
    if (highest_ == lowest_) return {0, -lowest_};
    const float top = static_cast<float>(search.levels - 1);
    const float step = top / (highest_ - lowest_);
    std::array<float, kBlock> codes;
    quantise(step, lowest_, top, codes);
    keep(codes, kept);
    Fit best{1 / step, lowest_};
    float least = error(best, codes);
    for (int i = 0; i <= search.steps; ++i) {
      const float tried =
          (search.first + 0.1F * static_cast<float>(i) + top) / (highest_ - best.lowest);
      quantise(tried, best.lowest, top, codes);
      Fit fit;
      if (!fits(codes, fit)) continue;
      const float wrong = error(fit, codes);
      if (!(wrong < least)) continue;
      keep(codes, kept);
      least = wrong;
      best = fit;
    }
    return {best.scale, -best.lowest};
  }

 private:
  struct Fit {
    float scale = 0, lowest = 0;
  };

  void quantise(float step, float lowest, float top, std::array<float, kBlock>& codes) const {
    for (int i = 0; i < kBlock; ++i) {
      const auto code = static_cast<float>(nearest(step * (in_[i] - lowest)));
      codes[i] = std::max(0.0F, std::min(top, code));
    }
  }

  static void keep(const std::array<float, kBlock>& codes, uint8_t* kept) {
    for (int i = 0; i < kBlock; ++i) kept[i] = static_cast<uint8_t>(codes[i]);
  }

  /// Weighted least squares of scale and minimum for given codes. False: no unique solution.
  bool fits(const std::array<float, kBlock>& codes, Fit& fit) const {
    float sum = 0, sum_squares = 0, sum_products = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float weighted = weights_[i] * codes[i];
      sum += weighted;
      sum_squares += weighted * codes[i];
      sum_products += weighted * in_[i];
    }
    const float determinant = sum_weights_ * sum_squares - sum * sum;
    if (!(determinant > 0)) return false;
    fit.scale = (sum_weights_ * sum_products - sum_numbers_ * sum) / determinant;
    fit.lowest = (sum_squares * sum_numbers_ - sum * sum_products) / determinant;
    if (fit.lowest > 0) fit = {sum_products / sum_squares, 0};
    return true;
  }

  float error(const Fit& fit, const std::array<float, kBlock>& codes) const {
    float sum = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float wrong = fit.scale * codes[i] + fit.lowest - in_[i];
      sum += weights_[i] * (wrong * wrong);
    }
    return sum;
  }

  const float* in_;
  std::array<float, kBlock> weights_;
  float lowest_ = 0, highest_ = 0, sum_weights_ = 0, sum_numbers_ = 0;
};

constexpr int kGroups = kSuper / kBlock;

/// Packs the 6-bit scales and minima of eight groups in 12 bytes.
void put_scales(const std::array<uint8_t, kGroups>& scales,
                const std::array<uint8_t, kGroups>& minima, std::byte* at) {
  for (int group = 0; group < 4; ++group) {
    at[group] = byte_of(scales[group] | (scales[group + 4] >> 4) << 6);
    at[group + 4] = byte_of(minima[group] | (minima[group + 4] >> 4) << 6);
    at[group + 8] = byte_of((scales[group + 4] & 15) | (minima[group + 4] & 15) << 4);
  }
}

/// Writes d[2] dmin[2] scales[12] of Q4_K and Q5_K and computes the codes. A group whose stored
/// scale is zero keeps the codes of its search; they have no effect.
void put_groups(const float* in, const Search& search, std::byte* block, Codes& codes) {
  std::array<Group, kGroups> groups;
  Group most;
  for (int group = 0; group < kGroups; ++group) {
    groups[group] = GroupSearch(in + kBlock * group).best(search, codes.data() + kBlock * group);
    most.scale = std::max(most.scale, groups[group].scale);
    most.minimum = std::max(most.minimum, groups[group].minimum);
  }
  constexpr float kMax = 63;
  const float of_scale = most.scale > 0 ? kMax / most.scale : 0;
  const float of_minimum = most.minimum > 0 ? kMax / most.minimum : 0;
  std::array<uint8_t, kGroups> scales, minima;
  const auto six_bits = [](float value) {
    return std::min<uint8_t>(63, static_cast<uint8_t>(nearest(value)));
  };
  for (int group = 0; group < kGroups; ++group) {
    scales[group] = six_bits(of_scale * groups[group].scale);
    minima[group] = six_bits(of_minimum * groups[group].minimum);
  }
  put_half(block, most.scale / kMax);
  put_half(block + 2, most.minimum / kMax);
  put_scales(scales, minima, block + 4);
  const float factor = as_stored(most.scale / kMax), lift = as_stored(most.minimum / kMax);
  for (int group = 0; group < kGroups; ++group) {
    const float scale = factor * static_cast<float>(scales[group]),
                minimum = lift * static_cast<float>(minima[group]);
    if (scale == 0) continue;
    for (int i = kBlock * group; i < kBlock * (group + 1); ++i) {
      const int code = nearest((in[i] + minimum) / scale);
      codes[static_cast<size_t>(i)] =
          static_cast<uint8_t>(std::max(0, std::min(search.levels - 1, code)));
    }
  }
}

/// Groups 2 k and 2 k + 1 are the low and high nibbles of 32 bytes.
void put_pairs_of_groups(const Codes& codes, std::byte* at) {
  for (int i = 0; i < kSuper / 2; ++i) {
    const int low = i / kBlock * 2 * kBlock + i % kBlock;
    at[i] = byte_of((codes[low] & 15) | (codes[low + kBlock] & 15) << 4);
  }
}

void q4_k(const float* in, std::byte* block) {
  Codes codes;
  put_groups(in, {16, -1.0F, 20}, block, codes);
  put_pairs_of_groups(codes, block + 16);
}

void q5_k(const float* in, std::byte* block) {
  Codes codes;
  put_groups(in, {32, -0.5F, 15}, block, codes);
  for (int i = 0; i < kBlock; ++i) {
    int bits = 0;
    for (int group = 0; group < kGroups; ++group) bits |= codes[kBlock * group + i] >> 4 << group;
    block[16 + i] = byte_of(bits);
  }
  put_pairs_of_groups(codes, block + 48);
}

constexpr int kSmall = 16;             ///< values per scale of Q6_K
constexpr int kMiddle = 32;            ///< middle of its codes
constexpr float kNextToZero = 1e-15F;  ///< smaller groups are treated as zero

/// Finds the scale for 16 values with codes -32..31 in 19 tries around the scale of the largest
/// magnitude; errors are weighted by the squared values.
class SignedSearch {
 public:
  explicit SignedSearch(const float* in) : in_(in) {}

  /// @param[out] kept codes of the best try, shifted to start at 0
  float best(uint8_t* kept) const {
    std::fill_n(kept, kSmall, uint8_t{0});
    const float extreme = largest_number();
    if (std::abs(extreme) < kNextToZero) return 0;
    float step = -static_cast<float>(kMiddle) / extreme;
    const Sums first = sums_of(step);
    keep(step, kept);
    float scale = first.squares != 0 ? first.products / first.squares : 0;
    float best = scale * first.products;
    for (int i = -9; i <= 9; ++i) {
      if (i == 0) continue;
      step = -(static_cast<float>(kMiddle) + 0.1F * static_cast<float>(i)) / extreme;
      const Sums sums = sums_of(step);
      if (!(sums.squares > 0 && sums.products * sums.products > best * sums.squares)) continue;
      keep(step, kept);
      scale = sums.products / sums.squares;
      best = scale * sums.products;
    }
    return scale;
  }

 private:
  struct Sums {
    float products = 0, squares = 0;
  };

  float largest_number() const {
    float extreme = 0;
    for (int i = 0; i < kSmall; ++i) {
      if (std::abs(in_[i]) > std::abs(extreme)) extreme = in_[i];
    }
    return extreme;
  }

  static int code_of(float value) {
    return std::max(-kMiddle, std::min(kMiddle - 1, nearest(value)));
  }

  Sums sums_of(float step) const {
    Sums sums;
    for (int i = 0; i < kSmall; ++i) {
      const float weight = in_[i] * in_[i], code = static_cast<float>(code_of(step * in_[i]));
      sums.products += weight * in_[i] * code;
      sums.squares += weight * code * code;
    }
    return sums;
  }

  void keep(float step, uint8_t* kept) const {
    for (int i = 0; i < kSmall; ++i)
      kept[i] = static_cast<uint8_t>(kMiddle + code_of(step * in_[i]));
  }

  const float* in_;
};

/// ql[128] qh[64] scales[16] int8 d[2], see ggml_blocks.inl
void put_six_bits(const Codes& codes, std::byte* block) {
  for (int i = 0; i < kSuper / 2; ++i) {
    const int low = i / 64 * 128 + i % 64;
    block[i] = byte_of((codes[low] & 15) | (codes[low + 64] & 15) << 4);
  }
  for (int i = 0; i < kSuper / 4; ++i) {
    const int first = i / 32 * 128 + i % 32;
    int bits = 0;
    for (int part = 0; part < 4; ++part) bits |= codes[first + 32 * part] >> 4 << (2 * part);
    block[kSuper / 2 + i] = byte_of(bits);
  }
}

void q6_k(const float* in, std::byte* block) {
  constexpr int kScales = kSuper / kSmall, kBytes = 210, kScalesAt = 192, kFactorAt = 208;
  Codes codes;
  std::array<float, kScales> scales;
  float extreme = 0;
  for (int group = 0; group < kScales; ++group) {
    scales[group] = SignedSearch(in + kSmall * group).best(codes.data() + kSmall * group);
    if (std::abs(scales[group]) > std::abs(extreme)) extreme = scales[group];
  }
  if (std::abs(extreme) < kNextToZero) {
    std::fill_n(block, kBytes, std::byte{0});
    return;
  }
  const float step = -128.0F / extreme, factor = as_stored(1 / step);
  put_half(block + kFactorAt, 1 / step);
  for (int group = 0; group < kScales; ++group) {
    const int stored = std::min(127, nearest(step * scales[group]));
    block[kScalesAt + group] = byte_of(stored);
    const float scale = factor * static_cast<float>(static_cast<int8_t>(stored));
    if (scale == 0) continue;
    for (int i = kSmall * group; i < kSmall * (group + 1); ++i) {
      const int code = std::max(-kMiddle, std::min(kMiddle - 1, nearest(in[i] / scale)));
      codes[static_cast<size_t>(i)] = static_cast<uint8_t>(kMiddle + code);
    }
  }
  put_six_bits(codes, block);
}

using WriteBlock = void (*)(const float*, std::byte*);

WriteBlock writer_of(const GgmlTypeInfo& type) {
  switch (static_cast<GgmlType>(type.id)) {
    case GgmlType::kQ4_0:
      return q4_0;
    case GgmlType::kQ4_1:
      return q4_1;
    case GgmlType::kQ5_0:
      return q5_0;
    case GgmlType::kQ5_1:
      return q5_1;
    case GgmlType::kQ8_0:
      return q8_0;
    case GgmlType::kQ4_K:
      return q4_k;
    case GgmlType::kQ5_K:
      return q5_k;
    case GgmlType::kQ6_K:
      return q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_quantize(const GgmlTypeInfo& type) {
  return float_dtype(type.name).has_value() || writer_of(type) != nullptr;
}

void quantize(const GgmlTypeInfo& type, const float* numbers, int64_t count, std::byte* blocks) {
  SFTRUN_CHECK(can_quantize(type) && count % type.block_size == 0);
  if (const auto plain = float_dtype(type.name)) {
    return convert(DType::kF32, reinterpret_cast<const std::byte*>(numbers), *plain, blocks, count);
  }
  const WriteBlock write = writer_of(type);
  for (int64_t i = 0; i < count / type.block_size; ++i)
    write(numbers + i * type.block_size, blocks + i * type.block_bytes);
}

}  // namespace sftrun::weights
