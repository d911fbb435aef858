// Dequantises ggml's block formats, 32 values at a time, in the order of operations of gguf-py's
// quants.py. Include it in a separate namespace for each instruction set and for CUDA, in files
// compiled without contraction (a fused multiply-add would round once where the reference rounds
// twice). C++17. Needs <cstdint>, <cstdlib> and <cstring>, with F16C <immintrin.h>, and
// sftrun/weights/ggml_type.h.

#ifdef __CUDACC__
#define SFTRUN_GGML __host__ __device__ inline
#else
#define SFTRUN_GGML inline
#endif

// If these loops are unrolled, GCC does not vectorise shifts by the loop index.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define SFTRUN_GGML_ROLLED _Pragma("GCC unroll 1")
#else
#define SFTRUN_GGML_ROLLED
#endif

namespace ggml {

using weights::GgmlType;

constexpr int kGroup = 32;  ///< values that are decoded together

SFTRUN_GGML float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

#if defined(__F16C__) && !defined(__CUDACC__)
SFTRUN_GGML float half_at(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, 2);
  return _cvtsh_ss(half);
}
#else
SFTRUN_GGML float half_at(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, 2);
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffU) << 13;
  if (magnitude >= (31U << 23)) return float_of(magnitude | 0x7f800000U | sign);
  if (magnitude >= (1U << 23)) return float_of((magnitude + (112U << 23)) | sign);
  // Subnormal: the mantissa counts units of 2^-24. Set an exponent of 2^-14, then subtract 2^-14.
  const float small = float_of(magnitude + (113U << 23)) - float_of(113U << 23);
  return sign == 0 ? small : -small;
}
#endif

#if defined(__CUDACC__) || defined(SFTRUN_CUDA_EMULATOR)
constexpr int kBytesBeyond = 4;  ///< number of bytes that are read beyond the end of a block
/// Bytes at any address, read as aligned words; for shared memory, where blocks are decoded.
template <int kCount>
SFTRUN_GGML void bytes_at(const uint8_t* from, uint8_t* out) {
  const int into_word = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
  const auto* words = reinterpret_cast<const uint32_t*>(from - into_word);
  const int shift = 8 * into_word;
  uint32_t low = words[0];
  for (int i = 0; i < kCount / 4; ++i) {
    const uint32_t high = words[i + 1];
    const auto word = static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> shift);
    memcpy(out + 4 * i, &word, 4);
    low = high;
  }
}
#else
template <int kCount>
SFTRUN_GGML void bytes_at(const uint8_t* from, uint8_t* out) {
  memcpy(out, from, kCount);
}
#endif

SFTRUN_GGML uint32_t word_at(const uint8_t* bytes) {
  uint8_t four[4];
  bytes_at<4>(bytes, four);
  uint32_t word;
  memcpy(&word, four, 4);
  return word;
}

/// Base of the formats: decodes 32 values in two halves.
/// @tparam Format has some<kCount>(block, group, first, out), which writes the values [first, first
/// + kCount) of a group, all in one half
template <typename Format>
struct Blocks {
  static SFTRUN_GGML void decode(const uint8_t* block, int group, float* out) {
    Format::template some<16>(block, group, 0, out);
    Format::template some<16>(block, group, 16, out + 16);
  }
};

/// d[2] qs[16]; values 0..15 in the low nibbles, 16..31 in the high ones.
struct Q4_0 : Blocks<Q4_0> {
  static constexpr int kNumbers = 32, kBytes = 18;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float d = half_at(block);
    const int shift = first / 16 * 4;
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 2 + first % 16, qs);
    for (int i = 0; i < kCount; ++i) out[i] = d * static_cast<float>(((qs[i] >> shift) & 15) - 8);
  }
};

/// d[2] m[2] qs[16]
struct Q4_1 : Blocks<Q4_1> {
  static constexpr int kNumbers = 32, kBytes = 20;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const int shift = first / 16 * 4;
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 4 + first % 16, qs);
    for (int i = 0; i < kCount; ++i) out[i] = d * static_cast<float>((qs[i] >> shift) & 15) + m;
  }
};

/// d[2] qh[4] qs[16]; bit i of qh is the fifth bit of value i.
struct Q5_0 : Blocks<Q5_0> {
  static constexpr int kNumbers = 32, kBytes = 22;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float d = half_at(block);
    const uint32_t high = word_at(block + 2) >> first;
    const int shift = first / 16 * 4;
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 6 + first % 16, qs);
    SFTRUN_GGML_ROLLED for (int i = 0; i < kCount; ++i) {
      const int q = ((qs[i] >> shift) & 15) | static_cast<int>((high >> i) & 1) << 4;
      out[i] = d * static_cast<float>(q - 16);
    }
  }
};

/// d[2] m[2] qh[4] qs[16]
struct Q5_1 : Blocks<Q5_1> {
  static constexpr int kNumbers = 32, kBytes = 24;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint32_t high = word_at(block + 4) >> first;
    const int shift = first / 16 * 4;
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 8 + first % 16, qs);
    SFTRUN_GGML_ROLLED for (int i = 0; i < kCount; ++i) {
      const int q = ((qs[i] >> shift) & 15) | static_cast<int>((high >> i) & 1) << 4;
      out[i] = d * static_cast<float>(q) + m;
    }
  }
};

/// d[2] qs[32] int8
struct Q8_0 : Blocks<Q8_0> {
  static constexpr int kNumbers = 32, kBytes = 34;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float d = half_at(block);
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 2 + first, qs);
    for (int i = 0; i < kCount; ++i) out[i] = static_cast<float>(static_cast<int8_t>(qs[i])) * d;
  }
};

/// scales[16] qs[64] d[2] dmin[2]; a scale byte has the scale (low nibble) and the minimum (high
/// nibble) of 16 values. The two bits of value 128 half + 32 part + i are bits 2 part of qs[32 half
/// + i].
struct Q2_K : Blocks<Q2_K> {
  static constexpr int kNumbers = 256, kBytes = 84;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int group, int first, float* out) {
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    const uint8_t packed = block[2 * group + first / 16];
    const float scale = d * static_cast<float>(packed & 15);
    const float minimum = dmin * static_cast<float>(packed >> 4);
    const int shift = 2 * (group % 4);
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 16 + 32 * (group / 4) + first, qs);
    for (int i = 0; i < kCount; ++i)
      out[i] = scale * static_cast<float>((qs[i] >> shift) & 3) - minimum;
  }
};

/// hmask[32] qs[64] scales[12] d[2]; qs as in Q2_K, a clear bit of hmask subtracts 4. Of the
/// sixteen 6-bit scales the first 8 bytes hold the low nibbles, the last 4 the high bit pairs.
struct Q3_K : Blocks<Q3_K> {
  static constexpr int kNumbers = 256, kBytes = 110;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int group, int first, float* out) {
    const float d = half_at(block + 108);
    const uint8_t* scales = block + 96;
    const int number = 2 * group + first / 16;
    const int low = (scales[number % 8] >> (4 * (number / 8))) & 15;
    const int high = (scales[8 + number % 4] >> (2 * (number / 4))) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const int shift = 2 * (group % 4);
    uint8_t qs[kCount], mask[kCount];
    bytes_at<kCount>(block + 32 + 32 * (group / 4) + first, qs);
    bytes_at<kCount>(block + first, mask);
    for (int i = 0; i < kCount; ++i) {
      const int offset = (((mask[i] >> group) & 1) ^ 1) << 2;
      out[i] = scale * static_cast<float>(((qs[i] >> shift) & 3) - offset);
    }
  }
};

struct ScaleMin {
  float scale, minimum;
};

/// The 6-bit scale and minimum of a group of 32, from the 12 bytes of Q4_K and Q5_K.
SFTRUN_GGML ScaleMin scale_min(const uint8_t* packed, int group) {
  if (group < 4)
    return {static_cast<float>(packed[group] & 63), static_cast<float>(packed[group + 4] & 63)};
  const int shared = packed[group + 4];
  return {static_cast<float>((shared & 15) | ((packed[group - 4] >> 2) & 48)),
          static_cast<float>((shared >> 4) | ((packed[group] >> 2) & 48))};
}

/// d[2] dmin[2] scales[12] qs[128]; groups 2 k and 2 k + 1 are the low and high nibbles of
/// qs[32 k ...].
struct Q4_K : Blocks<Q4_K> {
  static constexpr int kNumbers = 256, kBytes = 144;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int group, int first, float* out) {
    const ScaleMin packed = scale_min(block + 4, group);
    const float scale = half_at(block) * packed.scale,
                minimum = half_at(block + 2) * packed.minimum;
    const int shift = 4 * (group % 2);
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 16 + 32 * (group / 2) + first, qs);
    for (int i = 0; i < kCount; ++i)
      out[i] = scale * static_cast<float>((qs[i] >> shift) & 15) - minimum;
  }
};

/// d[2] dmin[2] scales[12] qh[32] qs[128]; bit `group` of qh[i] is the fifth bit.
struct Q5_K : Blocks<Q5_K> {
  static constexpr int kNumbers = 256, kBytes = 176;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int group, int first, float* out) {
    const ScaleMin packed = scale_min(block + 4, group);
    const float scale = half_at(block) * packed.scale,
                minimum = half_at(block + 2) * packed.minimum;
    const int shift = 4 * (group % 2);
    uint8_t high[kCount], qs[kCount];
    bytes_at<kCount>(block + 16 + first, high);
    bytes_at<kCount>(block + 48 + 32 * (group / 2) + first, qs);
    for (int i = 0; i < kCount; ++i) {
      const int q = ((qs[i] >> shift) & 15) | ((high[i] >> group) & 1) << 4;
      out[i] = scale * static_cast<float>(q) - minimum;
    }
  }
};

/// ql[128] qh[64] scales[16] int8 d[2]; group 4 half + part: nibble part / 2 of ql[64 half + 32
/// (part % 2) + i], bits 2 part of qh[32 half + i].
struct Q6_K : Blocks<Q6_K> {
  static constexpr int kNumbers = 256, kBytes = 210;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int group, int first, float* out) {
    const auto packed = static_cast<int8_t>(block[192 + 2 * group + first / 16]);
    const float scale = half_at(block + 208) * static_cast<float>(packed);
    const int half = group / 4, part = group % 4, shift = 4 * (part / 2), high_shift = 2 * part;
    uint8_t ql[kCount], qh[kCount];
    bytes_at<kCount>(block + 64 * half + 32 * (part % 2) + first, ql);
    bytes_at<kCount>(block + 128 + 32 * half + first, qh);
    for (int i = 0; i < kCount; ++i) {
      const int q = ((ql[i] >> shift) & 15) | ((qh[i] >> high_shift) & 3) << 4;
      out[i] = scale * static_cast<float>(q - 32);
    }
  }
};

/// The value of a 4-bit code: sign, two exponent bits, one mantissa bit.
SFTRUN_GGML float mxfp4_value(int code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  // With exponent 0 the value is mantissa / 2; otherwise there is an implicit leading one.
  const float size = exponent == 0 ? 0.5F * static_cast<float>(mantissa)
                                   : 0.5F * static_cast<float>((2 + mantissa) << (exponent - 1));
  return (code & 8) == 0 ? size : -size;
}

/// 2^(exponent - 127)
SFTRUN_GGML float mxfp4_scale(uint8_t exponent) {
  return float_of(exponent == 0 ? 0x00400000U : static_cast<uint32_t>(exponent) << 23);
}

/// e[1] qs[16]: an exponent; values 0..15 in the low nibbles, 16..31 in the high ones.
struct Mxfp4 : Blocks<Mxfp4> {
  static constexpr int kNumbers = 32, kBytes = 17;
  template <int kCount>
  static SFTRUN_GGML void some(const uint8_t* block, int /*group*/, int first, float* out) {
    const float scale = mxfp4_scale(block[0]);
    const int shift = first / 16 * 4;
    uint8_t qs[kCount];
    bytes_at<kCount>(block + 1 + first % 16, qs);
    for (int i = 0; i < kCount; ++i) out[i] = mxfp4_value((qs[i] >> shift) & 15) * scale;
  }
};

/// Calls body(format) for the type's format. @pre the type has blocks and is readable
template <typename Body>
void with_format(GgmlType type, Body&& body) {
  switch (type) {
    case GgmlType::kQ4_0:
      return body(Q4_0{});
    case GgmlType::kQ4_1:
      return body(Q4_1{});
    case GgmlType::kQ5_0:
      return body(Q5_0{});
    case GgmlType::kQ5_1:
      return body(Q5_1{});
    case GgmlType::kQ8_0:
      return body(Q8_0{});
    case GgmlType::kQ2_K:
      return body(Q2_K{});
    case GgmlType::kQ3_K:
      return body(Q3_K{});
    case GgmlType::kQ4_K:
      return body(Q4_K{});
    case GgmlType::kQ5_K:
      return body(Q5_K{});
    case GgmlType::kQ6_K:
      return body(Q6_K{});
    case GgmlType::kMxfp4:
      return body(Mxfp4{});
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      break;
  }
  abort();
}

/// Groups [first, first + count) of consecutive blocks.   @param out [count * kGroup]
inline void decode(GgmlType type, const uint8_t* blocks, int64_t first, int64_t count, float* out) {
  with_format(type, [&](auto format) {
    using Format = decltype(format);
    constexpr int64_t kGroups = Format::kNumbers / kGroup;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = first + i;
      Format::decode(blocks + group / kGroups * Format::kBytes, static_cast<int>(group % kGroups),
                     out + i * kGroup);
    }
  });
}

}  // namespace ggml

#undef SFTRUN_GGML
#undef SFTRUN_GGML_ROLLED
