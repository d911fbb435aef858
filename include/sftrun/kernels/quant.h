#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "sftrun/weights/ggml_type.h"

/// Frozen matrices in fewer bits. In 4, in the very bytes of bitsandbytes (0.50:
/// backends/default/ops.py, functional.py; QLoRA, arXiv:2305.14314, section 3): values in the order
/// of their memory, in blocks that share a factor, whatever row they are of. Or in ggml's blocks,
/// which a row has a whole number of.
namespace sftrun::kernels {

/// Of 4 bits, sixteen values each: quantiles of a normal distribution, or floats of one sign, two
/// exponent and one mantissa bit. Or one of ggml's types.
enum class QuantFormat : uint8_t { kNf4, kFp4, kGgml };

struct QuantOptions {
  QuantFormat format = QuantFormat::kNf4;  ///< or kFp4
  int64_t block_size = 64;                 ///< even
  bool nested = true;  ///< the blocks' factors are themselves quantised, to 8 bits
};

/// The value of each code of 4 bits.
std::span<const float, 16> quant_table(QuantFormat format);

struct QuantizedMatrix {
  QuantFormat format = QuantFormat::kNf4;
  weights::GgmlType ggml_type = weights::GgmlType::kF32;  ///< of kGgml: one with blocks
  int64_t rows = 0, columns = 0;
  int64_t block_size = 0;  ///< of 4 bits
  /// uint8. Of 4 bits [(rows * columns + 1) / 2]: two codes, the first in the high half. Of kGgml
  /// the rows' blocks, one after the other.
  at::Tensor packed;
  at::Tensor absmax;  ///< fp32 [blocks]; of a nested one undefined
  /// absmax = map[codes] * nested_absmax + offset, where map is bitsandbytes' dynamic one
  /// (`nested_map`) and every 256 blocks share a nested_absmax.
  at::Tensor codes;          ///< uint8 [blocks]
  at::Tensor nested_absmax;  ///< fp32 [ceil(blocks / 256)]
  float offset = 0;

  bool is_nested() const { return codes.defined(); }
  int64_t numel() const { return rows * columns; }
  int64_t num_blocks() const { return (numel() + block_size - 1) / block_size; }
  uint64_t nbytes() const;
  /// Factors of blocks [first, first + factors.size()).
  void block_factors(int64_t first, std::span<float> factors) const;
  QuantizedMatrix to(at::Device device) const;
  /// Some of the rows, without a copy.   @pre format == kGgml
  QuantizedMatrix narrow(int64_t first, int64_t count) const;
};

/// [256] fp32, on CPU: what the codes of nested factors stand for.
const at::Tensor& nested_map();

/// @param weight [rows, columns] contiguous, on CPU, fp32, bf16 or fp16
QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options);
/// [rows, columns], each value code * factor in fp32, rounded once.   @param dtype as of weights
at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType dtype);
/// Rows [first, first + count), on CPU.
at::Tensor dequantize_range(const QuantizedMatrix& matrix, int64_t first, int64_t count,
                            at::ScalarType dtype);
/// Some rows of it.   @param rows [N] int64 or int32, on the matrix' device   @return [N, columns]
at::Tensor dequantize_rows(const QuantizedMatrix& matrix, const at::Tensor& rows,
                           at::ScalarType dtype);
/// Values [row, row + rows) x [column, column + columns) into `out`, whose rows are `stride` apart.
/// On CPU; T is float, or uint16_t holding bfloat16. Serial.
template <typename T>
void dequantize_part(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                     int64_t columns, T* out, int64_t stride);

/// A matrix of a product, as it is or in 4 bits.
struct Matrix {
  at::Tensor dense;  ///< undefined where `quantized` is not null
  const QuantizedMatrix* quantized = nullptr;

  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is a matrix
  Matrix(at::Tensor of) : dense(std::move(of)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Matrix(const QuantizedMatrix& of) : quantized(&of) {}
  int64_t size(int64_t dim) const {
    if (quantized == nullptr) return dense.size(dim);
    return dim == 0 ? quantized->rows : quantized->columns;
  }
  /// Itself, or its values in a tensor that goes away with the result.
  at::Tensor values(at::ScalarType dtype) const {
    return quantized == nullptr ? dense : dequantize(*quantized, dtype);
  }
};

}  // namespace sftrun::kernels
