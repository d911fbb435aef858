#include <cstring>

#include "convert.h"
#include "half.h"
#include "mxfp4.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/gguf.h"

/// ggml's block formats, in the order of operations of gguf-py's quants.py. Compiled without
/// contraction: a fused multiply-add would round once where the reference rounds twice.
namespace sftrun::weights {
namespace {

constexpr int kSuper = 256;  ///< numbers in a block of the K formats

uint8_t u8(const std::byte* bytes, int64_t i) {
  return static_cast<uint8_t>(bytes[i]);
}

float half_at(const std::byte* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  return half_to_float(half);
}

uint32_t word_at(const std::byte* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

/// d[2] qs[16]; numbers 0..15 in the low nibbles, 16..31 in the high ones.
void q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const std::byte* qs = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((u8(qs, i) & 15) - 8);
    out[i + 16] = d * static_cast<float>((u8(qs, i) >> 4) - 8);
  }
}

/// d[2] m[2] qs[16]
void q4_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const std::byte* qs = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(u8(qs, i) & 15) + m;
    out[i + 16] = d * static_cast<float>(u8(qs, i) >> 4) + m;
  }
}

/// d[2] qh[4] qs[16]; bit i of qh is the fifth bit of number i.
void q5_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const uint32_t high = word_at(block + 2);
  const std::byte* qs = block + 6;
  for (int i = 0; i < 16; ++i) {
    const int low_half = (u8(qs, i) & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int high_half = (u8(qs, i) >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = d * static_cast<float>(low_half - 16);
    out[i + 16] = d * static_cast<float>(high_half - 16);
  }
}

/// d[2] m[2] qh[4] qs[16]
void q5_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const uint32_t high = word_at(block + 4);
  const std::byte* qs = block + 8;
  for (int i = 0; i < 16; ++i) {
    const int low_half = (u8(qs, i) & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int high_half = (u8(qs, i) >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = d * static_cast<float>(low_half) + m;
    out[i + 16] = d * static_cast<float>(high_half) + m;
  }
}

/// d[2] qs[32] int8
void q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

/// scales[16] qs[64] d[2] dmin[2]; a scale byte holds a scale (low) and a minimum (high) of 16
/// numbers. The two bits of number 128 half + 32 part + i are bits 2 part of qs[32 half + i].
void q2_k(const std::byte* block, float* out) {
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(u8(block, group) & 15);
    const float minimum = dmin * static_cast<float>(u8(block, group) >> 4);
    const std::byte* qs = block + 16 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = 2 * (group / 2 % 4);
    for (int i = 0; i < 16; ++i) {
      out[16 * group + i] = scale * static_cast<float>((u8(qs, i) >> shift) & 3) - minimum;
    }
  }
}

/// hmask[32] qs[64] scales[12] d[2]; qs as in Q2_K, a clear bit of hmask subtracts 4. Of the
/// sixteen 6-bit scales the first 8 bytes hold the low nibbles, the last 4 the high bit pairs.
void q3_k(const std::byte* block, float* out) {
  const float d = half_at(block + 108);
  const std::byte* scales = block + 96;
  for (int group = 0; group < 16; ++group) {
    const int low = (u8(scales, group % 8) >> (4 * (group / 8))) & 15;
    const int high = (u8(scales, 8 + group % 4) >> (2 * (group / 4))) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const std::byte* mask = block + 16 * (group % 2);
    const std::byte* qs = block + 32 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = 2 * (group / 2 % 4), bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int offset = (((u8(mask, i) >> bit) & 1) ^ 1) << 2;
      out[16 * group + i] = scale * static_cast<float>(((u8(qs, i) >> shift) & 3) - offset);
    }
  }
}

struct ScaleMin {
  float scale, minimum;
};

/// The 6-bit scale and minimum of the group of 32, from the 12 bytes that Q4_K and Q5_K pack them
/// in.
ScaleMin scale_min(const std::byte* packed, int group) {
  if (group < 4) {
    return {static_cast<float>(u8(packed, group) & 63),
            static_cast<float>(u8(packed, group + 4) & 63)};
  }
  const int shared = u8(packed, group + 4);
  return {static_cast<float>((shared & 15) | ((u8(packed, group - 4) >> 2) & 48)),
          static_cast<float>((shared >> 4) | ((u8(packed, group) >> 2) & 48))};
}

/// d[2] dmin[2] scales[12] qs[128]; groups 2 k and 2 k + 1 are the low and high nibbles of qs[32 k
/// ...].
void q4_k(const std::byte* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleMin packed = scale_min(block + 4, group);
    const float scale = d * packed.scale, minimum = dmin * packed.minimum;
    const std::byte* qs = block + 16 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int i = 0; i < 32; ++i) {
      out[32 * group + i] = scale * static_cast<float>((u8(qs, i) >> shift) & 15) - minimum;
    }
  }
}

/// d[2] dmin[2] scales[12] qh[32] qs[128]; bit `group` of qh[i] is the fifth bit.
void q5_k(const std::byte* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const std::byte* high = block + 16;
  for (int group = 0; group < 8; ++group) {
    const ScaleMin packed = scale_min(block + 4, group);
    const float scale = d * packed.scale, minimum = dmin * packed.minimum;
    const std::byte* qs = block + 48 + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int i = 0; i < 32; ++i) {
      const int q = ((u8(qs, i) >> shift) & 15) | ((u8(high, i) >> group) & 1) << 4;
      out[32 * group + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

/// ql[128] qh[64] scales[16] int8 d[2]; group of 32 number 4 half + part: nibble part / 2 of
/// ql[64 half + 32 (part % 2) + i], bits 2 part of qh[32 half + i].
void q6_k(const std::byte* block, float* out) {
  const float d = half_at(block + 208);
  for (int group = 0; group < 16; ++group) {
    const int half = group / 8, part = group / 2 % 4, within = 16 * (group % 2);
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
    const std::byte* ql = block + 64 * half + 32 * (part % 2) + within;
    const std::byte* qh = block + 128 + 32 * half + within;
    const int shift = 4 * (part / 2), high_shift = 2 * part;
    for (int i = 0; i < 16; ++i) {
      const int q = ((u8(ql, i) >> shift) & 15) | ((u8(qh, i) >> high_shift) & 3) << 4;
      out[16 * group + i] = scale * static_cast<float>(q - 32);
    }
  }
}

/// e[1] qs[16]: an exponent; numbers 0..15 in the low nibbles, 16..31 in the high ones.
void mxfp4(const std::byte* block, float* out) {
  const float scale = mxfp4_scale(u8(block, 0));
  for (int i = 0; i < 16; ++i) {
    out[i] = mxfp4_value(u8(block, 1 + i)) * scale;
    out[i + 16] = mxfp4_value(u8(block, 1 + i) >> 4) * scale;
  }
}

template <void (*kBlock)(const std::byte*, float*), int kCount, int kBytes>
void each_block(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count / kCount; ++i) kBlock(blocks + i * kBytes, out + i * kCount);
}

}  // namespace

void dequantize(const GgmlTypeInfo& type, const std::byte* blocks, int64_t count, float* out) {
  SFTRUN_CHECK(type.readable && count % type.block_size == 0);
  auto* bytes = reinterpret_cast<std::byte*>(out);
  switch (static_cast<GgmlType>(type.id)) {
    case GgmlType::kF32:
      return convert(DType::kF32, blocks, DType::kF32, bytes, count);
    case GgmlType::kF16:
      return convert(DType::kF16, blocks, DType::kF32, bytes, count);
    case GgmlType::kBF16:
      return convert(DType::kBF16, blocks, DType::kF32, bytes, count);
    case GgmlType::kQ4_0:
      return each_block<q4_0, 32, 18>(blocks, count, out);
    case GgmlType::kQ4_1:
      return each_block<q4_1, 32, 20>(blocks, count, out);
    case GgmlType::kQ5_0:
      return each_block<q5_0, 32, 22>(blocks, count, out);
    case GgmlType::kQ5_1:
      return each_block<q5_1, 32, 24>(blocks, count, out);
    case GgmlType::kQ8_0:
      return each_block<q8_0, 32, 34>(blocks, count, out);
    case GgmlType::kQ2_K:
      return each_block<q2_k, kSuper, 84>(blocks, count, out);
    case GgmlType::kQ3_K:
      return each_block<q3_k, kSuper, 110>(blocks, count, out);
    case GgmlType::kQ4_K:
      return each_block<q4_k, kSuper, 144>(blocks, count, out);
    case GgmlType::kQ5_K:
      return each_block<q5_k, kSuper, 176>(blocks, count, out);
    case GgmlType::kQ6_K:
      return each_block<q6_k, kSuper, 210>(blocks, count, out);
    case GgmlType::kMxfp4:
      return each_block<mxfp4, 32, 17>(blocks, count, out);
  }
  invariant_failed(__FILE__, __LINE__, "every readable type is dequantised");
}

}  // namespace sftrun::weights
