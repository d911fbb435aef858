#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sftrun/core/dtype.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/weights/ggml_type.h"

/// Quantised matrices of checkpoints (below 16 bits per value), as views of the mapped file.
namespace sftrun::weights {

/// bitsandbytes' 4-bit format (`quant_state` in its functional.py): consecutive values of the
/// matrix form blocks; each block has a scale.
struct FourBits {
  QuantFormat format = QuantFormat::kNf4;  ///< or kFp4
  int64_t block_size = 0;
  /// [(numel + 1) / 2], the first of two codes in the high nibble
  std::span<const std::byte> packed;
  std::span<const std::byte> table;   ///< F32 [16], the value of each code
  std::span<const std::byte> absmax;  ///< block scales: F32 [blocks]; U8 if nested
  bool nested = false;
  /// Nested (double quantisation): a block scale is map[absmax] * nested_absmax + offset.
  std::span<const std::byte> nested_absmax;  ///< F32 [blocks / 256]
  std::span<const std::byte> nested_map;     ///< F32 [256]
  float offset = 0;
};

/// Rows in one of ggml's block formats.
struct GgmlBlocks {
  GgmlTypeInfo type;
  std::vector<std::span<const std::byte>> pieces;  ///< the rows of all pieces are concatenated
  std::vector<int64_t>
      rows;  ///< for a single piece: row i is the file's row rows[i]; empty: the file's order
};

/// The matrices of all experts in MXFP4 as in safetensors files (gpt-oss): separate codes and
/// exponents; of two adjacent values the first is in the low nibble.
struct Mxfp4Experts {
  std::span<const std::byte> codes;      ///< [experts, rows, columns / 2]
  std::span<const std::byte> exponents;  ///< [experts, rows, columns / 32]
  /// Rows of gate and up alternate in the file; in memory up follows gate
  bool rows_in_turn = false;
};
/// Checks for the exponent 255, which encodes NaN (OCP Microscaling Formats 1.0, section 5.4.1).
/// @throws DataError naming the tensor
void require_numbers(std::span<const std::byte> mxfp4_exponents, const std::string& name);

/// 8-bit values with a scale per row: e4m3 with weight_scale (compressed-tensors, fbgemm), or
/// bitsandbytes' int8 with SCB, whose values are code * scale / 127.
struct EightBitRows {
  QuantFormat format = QuantFormat::kInt8;  ///< or kFp8
  std::span<const std::byte> codes;         ///< [rows, columns]
  std::span<const std::byte> scales;        ///< [rows], or a single one for all rows
  DType scale_dtype = DType::kF32;
  int64_t rows = 0;
  float scale(int64_t row) const;
};

using PackedMatrix = std::variant<FourBits, GgmlBlocks, Mxfp4Experts, EightBitRows>;
/// Consecutive values of a row that share a scale or bytes; 1: values can be separated.
int64_t values_per_block(const PackedMatrix& matrix);

/// Dequantises values [first, first + count) of the matrix, as bitsandbytes' dequantize_4bit.
void dequantize(const FourBits& matrix, int64_t first, int64_t count, float* destination);
/// The same as transformers' CompressedTensorsDequantize and bitsandbytes' int8_vectorwise_dequant.
void dequantize(const EightBitRows& matrix, int64_t first, int64_t count, float* destination);

}  // namespace sftrun::weights
