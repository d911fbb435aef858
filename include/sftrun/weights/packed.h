#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sftrun/core/dtype.h"
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
  std::vector<std::span<const std::byte>> pieces;  ///< the rows of one after those of the other
  std::vector<int64_t>
      rows;  ///< of one piece: the file's row that is this one here; empty: the same
};

/// A matrix of every expert in MXFP4 as safetensors hold it (gpt-oss): codes and exponents apart,
/// of two neighbours the first low.
struct Mxfp4Experts {
  std::span<const std::byte> codes;      ///< [experts, rows, columns / 2]
  std::span<const std::byte> exponents;  ///< [experts, rows, columns / 32]
  bool rows_in_turn = false;             ///< gate's and up's in turn, where here up's follow gate's
};
/// Of 255, which is no power of two but no number (OCP Microscaling Formats 1.0, section 5.4.1).
/// @throws DataError naming the tensor
void require_numbers(std::span<const std::byte> mxfp4_exponents, const std::string& name);

/// Eight bits a value and a factor for each row: e4m3 with its weight_scale (compressed-tensors,
/// fbgemm), or bitsandbytes' int8 with its SCB, whose values are code * factor / 127.
struct EightBitRows {
  bool fp8 = false;
  std::span<const std::byte> codes;    ///< [rows, columns]
  std::span<const std::byte> factors;  ///< [rows], or one for all of them
  DType factor_dtype = DType::kF32;
  int64_t rows = 0;
  float factor(int64_t row) const;
};

using PackedMatrix = std::variant<FourBits, GgmlBlocks, Mxfp4Experts, EightBitRows>;

/// Numbers [first, first + count) of the whole, in fp32, as bitsandbytes' dequantize_4bit.
void dequantize(const FourBits& matrix, int64_t first, int64_t count, float* destination);
/// Likewise, as transformers' CompressedTensorsDequantize and bitsandbytes'
/// int8_vectorwise_dequant.
void dequantize(const EightBitRows& matrix, int64_t first, int64_t count, float* destination);

}  // namespace sftrun::weights
