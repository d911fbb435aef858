// ggml's blocks in vectors: the numbers of sftrun/weights/ggml_blocks.inl bit for bit, by the same
// operations in the same order. What the compiler makes of those loops is bound by shifts and by
// what lies between bytes and floats; here a group's 32 codes are put together as bytes.

/// What becomes of code * scale.
enum class Shift { kNone, kPlus, kMinus };

/// Of one block: `factors` are those of its groups of 32, or of 16 where there are twice as many;
/// `codes` those of a group, signed bytes in the order of the numbers.
template <typename Format>
struct InVectors;

inline __m256i thirty_two(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

/// Bits of each byte, from `from` on.
inline __m256i bits_of(__m256i bytes, int from, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, from),
                          _mm256_set1_epi8(static_cast<char>(mask)));
}

inline __m256i less(__m256i codes, int by) {
  return _mm256_sub_epi8(codes, _mm256_set1_epi8(static_cast<char>(by)));
}

/// The low halves of 16 bytes, then the high ones.
inline __m256i halves_of(const uint8_t* bytes) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(low, 4), low), _mm256_set1_epi8(15));
}

/// 16 where the code's bit of the word is set.
inline __m256i fifth_bits(uint32_t word) {
#ifdef __AVX512BW__
  return _mm256_maskz_set1_epi8(word, 16);
#else
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(word)),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ULL));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit),
                          _mm256_set1_epi8(16));
#endif
}

template <>
struct InVectors<ggml::Q4_0> {
  static constexpr int kFactors = 1;
  static constexpr Shift kShift = Shift::kNone;
  static void factors(const uint8_t* block, float* scale, float* /*shift*/) {
    scale[0] = ggml::half_at(block);
  }
  static __m256i codes(const uint8_t* block, int /*group*/) {
    return less(halves_of(block + 2), 8);
  }
};

template <>
struct InVectors<ggml::Q4_1> {
  static constexpr int kFactors = 1;
  static constexpr Shift kShift = Shift::kPlus;
  static void factors(const uint8_t* block, float* scale, float* shift) {
    scale[0] = ggml::half_at(block), shift[0] = ggml::half_at(block + 2);
  }
  static __m256i codes(const uint8_t* block, int /*group*/) { return halves_of(block + 4); }
};

template <>
struct InVectors<ggml::Q5_0> : InVectors<ggml::Q4_0> {
  static __m256i codes(const uint8_t* block, int /*group*/) {
    return less(_mm256_or_si256(halves_of(block + 6), fifth_bits(ggml::word_at(block + 2))), 16);
  }
};

template <>
struct InVectors<ggml::Q5_1> : InVectors<ggml::Q4_1> {
  static __m256i codes(const uint8_t* block, int /*group*/) {
    return _mm256_or_si256(halves_of(block + 8), fifth_bits(ggml::word_at(block + 4)));
  }
};

template <>
struct InVectors<ggml::Q8_0> : InVectors<ggml::Q4_0> {
  static __m256i codes(const uint8_t* block, int /*group*/) { return thirty_two(block + 2); }
};

template <>
struct InVectors<ggml::Mxfp4> {
  static constexpr int kFactors = 1;
  static constexpr Shift kShift = Shift::kNone;
  static void factors(const uint8_t* block, float* scale, float* /*shift*/) {
    scale[0] = ggml::mxfp4_scale(block[0]);
  }
  static __m256i codes(const uint8_t* block, int /*group*/) { return halves_of(block + 1); }
};

template <>
struct InVectors<ggml::Q2_K> {
  static constexpr int kFactors = 16;
  static constexpr Shift kShift = Shift::kMinus;
  static void factors(const uint8_t* block, float* scale, float* shift) {
    const float d = ggml::half_at(block + 80), dmin = ggml::half_at(block + 82);
    for (int i = 0; i < kFactors; ++i) {
      scale[i] = d * static_cast<float>(block[i] & 15);
      shift[i] = dmin * static_cast<float>(block[i] >> 4);
    }
  }
  static __m256i codes(const uint8_t* block, int group) {
    return bits_of(thirty_two(block + 16 + 32 * (group / 4)), 2 * (group % 4), 3);
  }
};

template <>
struct InVectors<ggml::Q3_K> {
  static constexpr int kFactors = 16;
  static constexpr Shift kShift = Shift::kNone;
  /// The 6-bit numbers four at a time.
  static void factors(const uint8_t* block, float* scale, float* /*shift*/) {
    const float d = ggml::half_at(block + 108);
    const uint32_t high = ggml::word_at(block + 104);
    uint8_t packed[kFactors];
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = ggml::word_at(block + 96 + 4 * (i % 2)) >> (4 * (i / 2));
      const uint32_t four = (low & 0x0f0f0f0fU) | ((high >> (2 * i)) & 0x03030303U) << 4;
      memcpy(packed + 4 * i, &four, 4);
    }
    for (int i = 0; i < kFactors; ++i) scale[i] = d * static_cast<float>(packed[i] - 32);
  }
  static __m256i codes(const uint8_t* block, int group) {
    const __m256i low = bits_of(thirty_two(block + 32 + 32 * (group / 4)), 2 * (group % 4), 3),
                  third = bits_of(thirty_two(block), group, 1);
    return less(_mm256_or_si256(low, _mm256_slli_epi16(third, 2)), 4);
  }
};

template <>
struct InVectors<ggml::Q4_K> {
  static constexpr int kFactors = 8;
  static constexpr Shift kShift = Shift::kMinus;
  /// The 6-bit numbers four at a time: see ggml::scale_min.
  static void factors(const uint8_t* block, float* scale, float* shift) {
    const float d = ggml::half_at(block), dmin = ggml::half_at(block + 2);
    const uint32_t first = ggml::word_at(block + 4), second = ggml::word_at(block + 8),
                   shared = ggml::word_at(block + 12);
    const uint32_t words[4] = {
        first & 0x3f3f3f3fU, (shared & 0x0f0f0f0fU) | ((first >> 2) & 0x30303030U),
        second & 0x3f3f3f3fU, ((shared >> 4) & 0x0f0f0f0fU) | ((second >> 2) & 0x30303030U)};
    uint8_t packed[2 * kFactors];
    memcpy(packed, words, sizeof packed);
    for (int i = 0; i < kFactors; ++i) {
      scale[i] = d * static_cast<float>(packed[i]);
      shift[i] = dmin * static_cast<float>(packed[kFactors + i]);
    }
  }
  static __m256i codes(const uint8_t* block, int group) {
    return bits_of(thirty_two(block + 16 + 32 * (group / 2)), 4 * (group % 2), 15);
  }
};

template <>
struct InVectors<ggml::Q5_K> : InVectors<ggml::Q4_K> {
  static __m256i codes(const uint8_t* block, int group) {
    const __m256i low = bits_of(thirty_two(block + 48 + 32 * (group / 2)), 4 * (group % 2), 15),
                  fifth = bits_of(thirty_two(block + 16), group, 1);
    return _mm256_or_si256(low, _mm256_slli_epi16(fifth, 4));
  }
};

template <>
struct InVectors<ggml::Q6_K> {
  static constexpr int kFactors = 16;
  static constexpr Shift kShift = Shift::kNone;
  static void factors(const uint8_t* block, float* scale, float* /*shift*/) {
    const float d = ggml::half_at(block + 208);
    for (int i = 0; i < kFactors; ++i)
      scale[i] = d * static_cast<float>(static_cast<int8_t>(block[192 + i]));
  }
  static __m256i codes(const uint8_t* block, int group) {
    const int half = group / 4, part = group % 4;
    const __m256i low =
                      bits_of(thirty_two(block + 64 * half + 32 * (part % 2)), 4 * (part / 2), 15),
                  high = bits_of(thirty_two(block + 128 + 32 * half), 2 * part, 3);
    return less(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), 32);
  }
};

template <typename Format>
Sixteen values_of(__m128i codes) {
  return whole_numbers(codes);
}
/// Not whole: a zero has a sign.
template <>
inline Sixteen values_of<ggml::Mxfp4>(__m128i codes) {
  alignas(64) static constexpr float kValues[16] = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                                    -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  return look_up(kValues, codes);
}

template <typename Format>
Sixteen numbers_of(__m128i codes, const float* scale, const float* shift) {
  using Of = InVectors<Format>;
  const Sixteen scaled = values_of<Format>(codes) * all(*scale);
  if constexpr (Of::kShift == Shift::kPlus) return scaled + all(*shift);
  if constexpr (Of::kShift == Shift::kMinus) return scaled - all(*shift);
  return scaled;
}

/// Groups [begin, end) of a block.
template <typename Format, typename T>
inline __attribute__((always_inline)) void decode_block(const uint8_t* block, int begin, int end,
                                                        T* out) {
  using Of = InVectors<Format>;
  constexpr int kGroups = Format::kNumbers / kGroup, kOfGroup = Of::kFactors / kGroups;
  alignas(64) float scale[Of::kFactors], shift[Of::kFactors];
  Of::factors(block, scale, shift);
#pragma GCC unroll 8
  for (int group = begin; group < end; ++group, out += kGroup) {
    const __m256i codes = Of::codes(block, group);
    const int first = kOfGroup * group, second = first + kOfGroup - 1;
    store_thirty_two(
        out, numbers_of<Format>(_mm256_castsi256_si128(codes), scale + first, shift + first),
        numbers_of<Format>(_mm256_extracti128_si256(codes, 1), scale + second, shift + second));
  }
}

/// Groups [first, first + count) of consecutive blocks.
template <typename Format, typename T>
void decode_groups(const uint8_t* blocks, int64_t first, int64_t count, T* out) {
  constexpr int kGroups = Format::kNumbers / kGroup;
  const uint8_t* block = blocks + first / kGroups * Format::kBytes;
  for (int64_t group = first % kGroups; count > 0; group = 0, block += Format::kBytes) {
    const int64_t some = std::min(count, kGroups - group);
    if (some == kGroups)
      decode_block<Format>(block, 0, kGroups, out);
    else
      decode_block<Format>(block, static_cast<int>(group), static_cast<int>(group + some), out);
    count -= some, out += some * kGroup;
  }
}
