#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "sftrun/weights/ggml_type.h"

/// How checkpoints hold matrices in fewer bits than 16, as the bytes lie in the mapped file.
namespace sftrun::weights {

/// Four bits a value as bitsandbytes has them (`quant_state` of its functional.py): codes in blocks
/// that share a factor, through the whole matrix.
struct FourBits {
  bool fp4 = false;  ///< else nf4
  int64_t block_size = 0;
  std::span<const std::byte> packed;  ///< [(numel + 1) / 2], the first of two codes high
  std::span<const std::byte> table;   ///< F32 [16]
  std::span<const std::byte> absmax;  ///< F32 [blocks], or of nested ones U8
  bool nested = false;
  /// Of nested ones: a factor is map[absmax] * nested_absmax + offset.
  std::span<const std::byte> nested_absmax;  ///< F32 [blocks / 256]
  std::span<const std::byte> nested_map;     ///< F32 [256]
  float offset = 0;
};
inline constexpr int64_t kNestedBlock = 256;  ///< blocks that share a nested_absmax

/// Rows of ggml's blocks.
struct GgmlBlocks {
  GgmlTypeInfo type;
  std::span<const std::byte> bytes;
  std::vector<int64_t> rows;  ///< the file's row that is this one here; empty: in the same order
};

using PackedMatrix = std::variant<FourBits, GgmlBlocks>;

/// Numbers [first, first + count) of the whole, in fp32, as bitsandbytes' dequantize_4bit.
void dequantize(const FourBits& matrix, int64_t first, int64_t count, float* destination);

}  // namespace sftrun::weights
