#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/quant_format.h"
#include "sftrun/core/tensor_slice.h"
#include "sftrun/weights/ggml_type.h"

/// Frozen matrices in quantised formats.
///   4 bits: the byte layout of bitsandbytes (0.50: backends/default/ops.py, functional.py; QLoRA,
///           arXiv:2305.14314, section 3). Blocks of consecutive values in memory order, across row
///           boundaries, share an absmax.
///   8 bits: one scale per row. e4m3 as in compressed-tensors and transformers'
///           quantize_fp8_per_row, or int8 as in bitsandbytes' LLM.int8 (arXiv:2208.07339). Or e4m3
///           with one scale per block of rows and columns (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
///   4-bit integers: a scale and a zero point per group of a row (GPTQ, arXiv:2210.17323; AWQ,
///           arXiv:2306.00978).
///   ggml:   ggml's block formats; each row is a whole number of blocks.
namespace sftrun::kernels {

using sftrun::QuantFormat;
using sftrun::QuantOptions;

/// The values of the codes; empty: they are computed.
std::span<const float> quant_table(QuantFormat format);

struct QuantizedMatrix {
  QuantFormat format = QuantFormat::kNf4;
  weights::GgmlType ggml_type = weights::GgmlType::kF32;  ///< of kGgml: one with blocks
  int64_t rows = 0, columns = 0;
  int64_t block_size =
      0;  ///< of 4-bit formats, and the columns of a block of kFp8Blocks or a group
  /// uint8. 4 bits: [(rows * columns + 1) / 2], two codes per byte, the first in the high nibble.
  /// kInt4Groups: the same, but each row has (columns + 1) / 2 bytes. 8 bits: [rows * columns]. kGgml: the
  /// blocks of the rows, in row order.
  at::Tensor packed;
  /// fp32. 4 bits: [blocks], value = table[code] * absmax of its block; undefined if nested.
  /// 8 bits: [rows], value = code * absmax of its row, for kInt8 divided by 127; undefined: the codes
  /// are the values. kFp8Blocks: [rows of blocks * blocks_of_row()], value = code * absmax of its block.
  /// kInt4Groups: [rows * groups], value = (code - zero point) * absmax of its group.
  at::Tensor absmax;
  /// kFp8Blocks: int32 [rows], the row of blocks of each row. So rows can be cut, chosen and put below
  /// one another anywhere.
  at::Tensor block_rows;
  at::Tensor zeros;  ///< kInt4Groups: uint8 [rows * groups], the codes of 0
  /// kInt4Groups: int32 [columns], the group of each column. Undefined: column / block_size.
  at::Tensor column_groups;
  /// Nested: absmax = map[codes] * nested_absmax + offset, where map is bitsandbytes' dynamic map
  /// (`nested_map`) and each nested_block blocks share a nested_absmax.
  at::Tensor codes;          ///< uint8 [blocks]
  at::Tensor nested_absmax;  ///< fp32 [ceil(blocks / nested_block)]
  at::Tensor nested_values;  ///< `nested_map` on the codes' device, set by `to`; CPU: undefined
  float offset = 0;
  int64_t first_block = 0;  ///< offset of the first block for the index into nested_absmax
  int64_t nested_block = kNestedBlock;  ///< a power of two; smaller in parts of a matrix

  const QuantFormatInfo& info() const { return quant_info(format); }
  bool is_nested() const { return codes.defined(); }
  int64_t numel() const { return rows * columns; }
  int64_t num_blocks() const { return (numel() + block_size - 1) / block_size; }
  /// kFp8Blocks: blocks beside each other.
  int64_t blocks_of_row() const { return (columns + block_size - 1) / block_size; }
  uint64_t nbytes() const;
  /// The tensors that hold the codes and their scales. `nested_values` is shared by all matrices.
  std::vector<at::Tensor> tensors() const;
  std::vector<at::Tensor*> tensor_members();  ///< the same
  int64_t row_bytes() const;  ///< of `packed`   @pre not nf4 or fp4, where rows may share a byte
  /// Writes the scales of blocks [first, first + scales.size()).
  void block_scales(int64_t first, std::span<float> scales) const;
  QuantizedMatrix to(at::Device device) const;
  /// Whether each multiple of num_rows rows starts a new block; always true for formats without
  /// blocks across rows.
  bool splits_at(int64_t num_rows) const;
  /// A view of rows [first, first + count).   @pre splits_at(first) and splits_at(count)
  QuantizedMatrix narrow(int64_t first, int64_t count) const;
  /// Consecutive values of a row that cannot be separated, because they share a scale or bytes.
  int64_t values_per_block() const;
  /// Whether a part consists of whole blocks. Blocks of 4-bit formats may cross rows.
  bool has_part(const TensorSlice& slice) const;
  /// A copy of some rows (dimension 0) or columns (1), with the same values. On CPU.
  /// @pre has_part(slice)
  QuantizedMatrix part(const TensorSlice& slice) const;
  /// The same codes without scales (absmax undefined).   @pre the format has a scale per row
  QuantizedMatrix without_scales() const;
};

/// [256] fp32, on CPU: the values of the codes of nested absmax.
const at::Tensor& nested_map();

/// @param weight [rows, columns] contiguous, on CPU, fp32, bf16 or fp16. kInt8 converts it to fp16,
/// as bitsandbytes does.   @throws DataError naming `name` if values are NaN or infinite, for kInt8
/// also in fp16
QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options,
                         const std::string& name = "?");
/// [rows, columns]: value = code * scale in fp32, rounded once to `dtype`.
/// @param dtype fp32, bf16 or fp16
at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType dtype);
/// The same into caller-owned memory, such as some rows of a joint matrix.
/// @param out [rows, columns] on the device of the matrix, fp32, bf16 or fp16; contiguous, or on
/// CUDA with a larger row stride
void dequantize_into(const QuantizedMatrix& matrix, const at::Tensor& out);
/// Rows [first, first + count), on CPU.
at::Tensor dequantize_range(const QuantizedMatrix& matrix, int64_t first, int64_t count,
                            at::ScalarType dtype);
/// Selected rows.   @param rows [N] int64 or int32, on the matrix' device   @return [N, columns]
at::Tensor dequantize_rows(const QuantizedMatrix& matrix, const at::Tensor& rows,
                           at::ScalarType dtype);
/// Values [row, row + rows) x [column, column + columns) into `out` with row stride `stride`. On
/// CPU; T is float, or uint16_t that holds bfloat16. Single-threaded.
template <typename T>
void dequantize_part(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                     int64_t columns, T* out, int64_t stride);

/// Transposes the codes of an 8-bit matrix into `out` [columns, rows] uint8. On CUDA.
void transpose_codes_into(const QuantizedMatrix& matrix, const at::Tensor& out);

/// Activations rounded to e4m3: x ~ codes * scales.
struct RoundedRows {
  at::Tensor codes;   ///< [T, K]: on CPU the values in fp32 or bf16, on CUDA kFloat8_e4m3fn
  at::Tensor scales;  ///< fp32 [T, 1]: row scales
};
/// Rounds each row as transformers' quantize_fp8_per_row does.
/// @param x [T, K]   @param gains fp32 [K], multiplies x first; or undefined
RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains = {});

/// Right operand of a product: dense or quantised.
struct Matrix {
  at::Tensor dense;  ///< undefined where `quantized` is not null
  const QuantizedMatrix* quantized = nullptr;

  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is a matrix
  Matrix(at::Tensor matrix) : dense(std::move(matrix)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Matrix(const QuantizedMatrix& matrix) : quantized(&matrix) {}
  int64_t size(int64_t dim) const {
    if (quantized == nullptr) return dense.size(dim);
    return dim == 0 ? quantized->rows : quantized->columns;
  }
  /// The dense tensor itself, or a new dequantised tensor.
  at::Tensor values(at::ScalarType dtype) const {
    return quantized == nullptr ? dense : dequantize(*quantized, dtype);
  }
};

}  // namespace sftrun::kernels
