// Vectorised dequantisation of ggml blocks, bit-identical to sftrun/weights/ggml_blocks.inl: the
// same operations in the same order. The 32 codes of a group are assembled as bytes, which is
// faster than what the compiler generates from the plain loops.

/// Whether a shift is added to or subtracted from code * scale.
enum class Shift { kNone, kPlus, kMinus };

/// Per format: the block's scales, `is_finite` (no fp16 scale is infinite or NaN), and the codes of
/// a group as signed bytes in value order.
template <typename Format>
struct InVectors;

inline __m256i thirty_two_bytes(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}
inline __m128i sixteen_bytes(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
inline __m256i all_bytes(int value) {
  return _mm256_set1_epi8(static_cast<char>(value));
}

/// The bits `ones` of each byte, moved from bit position `from` to `to`.
inline __m256i bits_of(__m256i bytes, int from, int ones, int to = 0) {
  const __m256i moved =
      from > to ? _mm256_srli_epi16(bytes, from - to) : _mm256_slli_epi16(bytes, to - from);
  return _mm256_and_si256(moved, all_bytes(ones << to));
}

/// The low nibbles of 16 bytes, then the high nibbles.
inline __m256i halves_of(const uint8_t* bytes) {
  const __m256i twice = _mm256_broadcastsi128_si256(sixteen_bytes(bytes)),
                from = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
  return _mm256_and_si256(_mm256_srlv_epi32(twice, from), all_bytes(15));
}

/// 16 for each code whose bit in `word` is set, else 0.
inline __m256i fifth_bits(uint32_t word) {
#ifdef __AVX512BW__
  return _mm256_maskz_set1_epi8(word, 16);
#else
  const __m256i of_code = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                             0x0303030303030303),
                bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ULL));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), of_code);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), all_bytes(16));
#endif
}

inline bool is_finite_half(const uint8_t* half) {
  return (half[1] & 0x7c) != 0x7c;
}

/// Two consecutive fp16 values.
inline __m128 two_halves(const uint8_t* bytes) {
  return _mm_cvtph_ps(_mm_loadu_si32(bytes));
}

/// One scale for all 32 values of a block; `side` is the index of a group of 16.
struct OneScale {
  __m128 both;
  Sixteen scale(int /*side*/) const { return first_of(both); }
  Sixteen shift(int /*side*/) const { return first_of(_mm_movehdup_ps(both)); }
};

struct WithScale {
  static constexpr Shift kShift = Shift::kNone;
  static bool is_finite(const uint8_t* block) { return is_finite_half(block); }
  static SFTRUN_INLINE OneScale scales(const uint8_t* block) { return {two_halves(block)}; }
};
struct WithShift {
  static constexpr Shift kShift = Shift::kPlus;
  static bool is_finite(const uint8_t* block) {
    return is_finite_half(block) && is_finite_half(block + 2);
  }
  static SFTRUN_INLINE OneScale scales(const uint8_t* block) { return {two_halves(block)}; }
};

template <>
struct InVectors<ggml::Q4_0> : WithScale {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    return _mm256_sub_epi8(halves_of(block + 2), all_bytes(8));
  }
};
template <>
struct InVectors<ggml::Q4_1> : WithShift {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    return halves_of(block + 4);
  }
};
template <>
struct InVectors<ggml::Q5_0> : WithScale {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    const __m256i high = fifth_bits(ggml::word_at(block + 2));
    return _mm256_sub_epi8(_mm256_or_si256(halves_of(block + 6), high), all_bytes(16));
  }
};
template <>
struct InVectors<ggml::Q5_1> : WithShift {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    return _mm256_or_si256(halves_of(block + 8), fifth_bits(ggml::word_at(block + 4)));
  }
};
template <>
struct InVectors<ggml::Q8_0> : WithScale {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    return thirty_two_bytes(block + 2);
  }
};
template <>
struct InVectors<ggml::Mxfp4> {
  static constexpr Shift kShift = Shift::kNone;
  static bool is_finite(const uint8_t* block) { return block[0] != 255; }
  static SFTRUN_INLINE OneScale scales(const uint8_t* block) {
    return {_mm_set_ss(ggml::mxfp4_scale(block[0]))};
  }
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int /*group*/) {
    return halves_of(block + 1);
  }
};

/// One scale per 16 values.
struct ScalesOf16 {
  alignas(64) float scales[16], shifts[16];
  Sixteen scale(int side) const { return all(scales[side]); }
  Sixteen shift(int side) const { return all(shifts[side]); }
};

template <>
struct InVectors<ggml::Q2_K> {
  static constexpr Shift kShift = Shift::kMinus;
  static bool is_finite(const uint8_t* block) {
    return is_finite_half(block + 80) && is_finite_half(block + 82);
  }
  static SFTRUN_INLINE ScalesOf16 scales(const uint8_t* block) {
    const __m128i packed = sixteen_bytes(block), low = _mm_set1_epi8(15);
    const __m128 both = two_halves(block + 80);
    ScalesOf16 result;
    store_sixteen(result.scales, first_of(both) * whole_numbers(_mm_and_si128(packed, low)));
    store_sixteen(result.shifts, first_of(_mm_movehdup_ps(both)) *
                                     whole_numbers(_mm_and_si128(_mm_srli_epi16(packed, 4), low)));
    return result;
  }
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int group) {
    return bits_of(thirty_two_bytes(block + 16 + 32 * (group / 4)), 2 * (group % 4), 3);
  }
};

template <>
struct InVectors<ggml::Q3_K> {
  static constexpr Shift kShift = Shift::kNone;
  static bool is_finite(const uint8_t* block) { return is_finite_half(block + 108); }
  /// Unpacks the 6-bit scales four at a time.
  static SFTRUN_INLINE ScalesOf16 scales(const uint8_t* block) {
    const uint64_t low = ggml::word_at(block + 96) | uint64_t{ggml::word_at(block + 100)} << 32;
    const uint32_t high = ggml::word_at(block + 104);
    const __m128i lows = _mm_set_epi64x(static_cast<int64_t>(low >> 4), static_cast<int64_t>(low)),
                  highs = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(high)),
                                         _mm_setr_epi32(0, 2, 4, 6));
    const __m128i packed = _mm_or_si128(_mm_and_si128(lows, _mm_set1_epi8(15)),
                                        _mm_slli_epi16(_mm_and_si128(highs, _mm_set1_epi8(3)), 4));
    ScalesOf16 result;
    store_sixteen(result.scales, all(ggml::half_at(block + 108)) *
                                     whole_numbers(_mm_sub_epi8(packed, _mm_set1_epi8(32))));
    return result;
  }
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int group) {
    const __m256i low =
                      bits_of(thirty_two_bytes(block + 32 + 32 * (group / 4)), 2 * (group % 4), 3),
                  third = bits_of(thirty_two_bytes(block), group, 1, 2);
    return _mm256_sub_epi8(_mm256_or_si256(low, third), all_bytes(4));
  }
};

/// One scale per 32 values.
struct ScalesOf32 {
  alignas(64) float scales_shifts[16];
  Sixteen scale(int side) const { return all(scales_shifts[side / 2]); }
  Sixteen shift(int side) const { return all(scales_shifts[8 + side / 2]); }
};

template <>
struct InVectors<ggml::Q4_K> {
  static constexpr Shift kShift = Shift::kMinus;
  static bool is_finite(const uint8_t* block) {
    return is_finite_half(block) && is_finite_half(block + 2);
  }
  /// Unpacks the 6-bit scales four at a time, as ggml::scale_min does.
  static SFTRUN_INLINE ScalesOf32 scales(const uint8_t* block) {
    const uint32_t first = ggml::word_at(block + 4), second = ggml::word_at(block + 8),
                   shared = ggml::word_at(block + 12);
    const uint32_t packed[4] = {
        first & 0x3f3f3f3fU, (shared & 0x0f0f0f0fU) | ((first >> 2) & 0x30303030U),
        second & 0x3f3f3f3fU, ((shared >> 4) & 0x0f0f0f0fU) | ((second >> 2) & 0x30303030U)};
    const __m128i numbers =
        _mm_setr_epi32(static_cast<int>(packed[0]), static_cast<int>(packed[1]),
                       static_cast<int>(packed[2]), static_cast<int>(packed[3]));
    ScalesOf32 result;
    store_sixteen(result.scales_shifts, eight_of_each(two_halves(block)) * whole_numbers(numbers));
    return result;
  }
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int group) {
    return bits_of(thirty_two_bytes(block + 16 + 32 * (group / 2)), 4 * (group % 2), 15);
  }
};

template <>
struct InVectors<ggml::Q5_K> : InVectors<ggml::Q4_K> {
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int group) {
    const __m256i low =
                      bits_of(thirty_two_bytes(block + 48 + 32 * (group / 2)), 4 * (group % 2), 15),
                  fifth = bits_of(thirty_two_bytes(block + 16), group, 1, 4);
    return _mm256_or_si256(low, fifth);
  }
};

template <>
struct InVectors<ggml::Q6_K> {
  static constexpr Shift kShift = Shift::kNone;
  static bool is_finite(const uint8_t* block) { return is_finite_half(block + 208); }
  static SFTRUN_INLINE ScalesOf16 scales(const uint8_t* block) {
    ScalesOf16 result;
    store_sixteen(result.scales,
                  all(ggml::half_at(block + 208)) * whole_numbers(sixteen_bytes(block + 192)));
    return result;
  }
  static SFTRUN_INLINE __m256i codes(const uint8_t* block, int group) {
    const int half = group / 4, part = group % 4;
    const __m256i low = bits_of(thirty_two_bytes(block + 64 * half + 32 * (part % 2)),
                                4 * (part / 2), 15),
                  high = bits_of(thirty_two_bytes(block + 128 + 32 * half), 2 * part, 3, 4);
    return _mm256_sub_epi8(_mm256_or_si256(low, high), all_bytes(32));
  }
};

template <typename Format>
SFTRUN_INLINE Sixteen values_of(__m128i codes) {
  return whole_numbers(codes);
}
/// MXFP4 values are not integers, and zero has a sign.
template <>
SFTRUN_INLINE Sixteen values_of<ggml::Mxfp4>(__m128i codes) {
  alignas(64) static constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                    4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                                    -2.0F, -3.0F, -4.0F, -6.0F};
  return look_up(kValues, codes);
}

template <typename Format, typename Scales>
SFTRUN_INLINE Sixteen numbers_of(__m128i codes, const Scales& scales, int side) {
  constexpr Shift kShift = InVectors<Format>::kShift;
  const Sixteen scaled = scales.scale(side) * values_of<Format>(codes);
  if constexpr (kShift == Shift::kPlus) return scaled + scales.shift(side);
  if constexpr (kShift == Shift::kMinus) return scaled - scales.shift(side);
  return scaled;
}

template <typename Format, typename Scales, typename Out>
SFTRUN_INLINE void decode_group(const uint8_t* block, const Scales& scales, int group,
                                const Out& out) {
  const __m256i codes = InVectors<Format>::codes(block, group);
  store_finite(out, numbers_of<Format>(_mm256_castsi256_si128(codes), scales, 2 * group),
               numbers_of<Format>(_mm256_extracti128_si256(codes, 1), scales, 2 * group + 1));
}

/// Groups [begin, end) of a block. For a whole block the bit shifts are compile-time constants.
template <typename Format, typename Out>
SFTRUN_INLINE void decode_block(const uint8_t* block, int begin, int end, Out out) {
  constexpr int kGroups = Format::kNumbers / kGroup;
  if (!InVectors<Format>::is_finite(block)) {
    for (int group = begin; group < end; ++group, out += kGroup)
      decode_one<Format>(block, group, out);
    return;
  }
  const auto scales = InVectors<Format>::scales(block);
  if (end - begin == kGroups) {
#pragma GCC unroll 8
    for (int group = 0; group < kGroups; ++group)
      decode_group<Format>(block, scales, group, out + group * kGroup);
    return;
  }
#pragma GCC unroll 1
  for (int group = begin; group < end; ++group, out += kGroup)
    decode_group<Format>(block, scales, group, out);
}

/// Groups [first, first + count) of consecutive blocks.
template <typename Format, typename Out>
SFTRUN_INLINE void decode_groups(const uint8_t* blocks, int64_t first, int64_t count, Out out) {
  constexpr int64_t kGroups = Format::kNumbers / kGroup;
  const uint8_t* block = blocks + first / kGroups * Format::kBytes;
  for (int64_t begin = first % kGroups; count > 0; begin = 0, block += Format::kBytes) {
    const int64_t some = std::min(count, kGroups - begin);
    decode_block<Format>(block, static_cast<int>(begin), static_cast<int>(begin + some), out);
    count -= some, out += some * kGroup;
  }
}
