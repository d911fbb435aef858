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

/// A matrix in one of the formats that runs quantise to, as views of codes and scales.
struct CodedMatrix {
  QuantFormat format = QuantFormat::kNf4;
  QuantLayout layout = QuantLayout::kNone;  ///< of the files; kNone: that of the format
  int64_t rows = 0, columns = 0;
  int64_t block_size = 0;  ///< consecutive values that share a scale; 0: see `tile`
  int64_t tile = 0;        ///< rows and columns that share a scale; 0: the values of a row
  int64_t group = 0;       ///< kInt4Groups: columns of a row that share a scale and a zero point
  /// As `packed` of kernels::QuantizedMatrix. kInt4Groups: words in the order of `layout` (int4_groups.h).
  std::span<const std::byte> codes;
  /// Of blocks: F32 [blocks], U8 if nested. Of rows: `scale_dtype` [rows]. Of tiles: `scale_dtype`
  /// [rows of tiles, tiles_of_row()]. Of rows or tiles also one for the whole matrix. Of groups:
  /// `scale_dtype`, in the order of `layout`.
  std::span<const std::byte> scales;
  DType scale_dtype = DType::kF32;
  std::span<const std::byte> table = {};  ///< F32, the value of each code; empty: it is computed
  bool is_nested = false;
  /// Nested (double quantisation): a block scale is map[scales] * nested_scales + offset.
  std::span<const std::byte> nested_scales = {};  ///< F32 [blocks / 256]
  std::span<const std::byte> nested_map = {};     ///< F32 [256]
  float offset = 0;
  /// kInt4Groups: I32 words with the codes of 0, in the order of `layout`; empty: 8 everywhere.
  std::span<const std::byte> zeros = {};
  bool zeros_are_less_one = false;                ///< files hold them minus one, modulo 16
  std::span<const std::byte> column_groups = {};  ///< I32 [columns]; empty: column / group

  int64_t groups_of_row() const {
    return static_cast<int64_t>(scales.size()) / size_of(scale_dtype) / rows;
  }
  int64_t tiles_of_row() const { return (columns + tile - 1) / tile; }
  /// Of a row, or of a tile.
  float scale(int64_t index) const;
  /// What codes and scales take in memory, where scales are in fp32.   @pre block_size is 0
  int64_t bytes_in_memory() const;
};
/// A tensor of several matrices in one of the formats without `block_size`, whose rows follow one
/// another: all experts of a layer.
struct CodedParts {
  std::vector<CodedMatrix> parts;
};
/// Dequantises values [first, first + count) of the matrix, bit-equal to the library of its layout
/// (stored_layout.h).
void dequantize(const CodedMatrix& matrix, int64_t first, int64_t count, float* destination);

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

using PackedMatrix = std::variant<CodedMatrix, CodedParts, GgmlBlocks, Mxfp4Experts>;
/// The matrix, or the first of the parts; nullptr: a format of other files.
const CodedMatrix* first_coded(const PackedMatrix& matrix);
/// Consecutive values of a row that share a scale or bytes; 1: values can be separated.
int64_t values_per_block(const PackedMatrix& matrix);

}  // namespace sftrun::weights
