#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sftrun/weights/ggml_type.h"

/// Frozen matrices in fewer bits. In 4, in the very bytes of bitsandbytes (0.50:
/// backends/default/ops.py, functional.py; QLoRA, arXiv:2305.14314, section 3): values in the order
/// of their memory, in blocks that share a factor, whatever row they are of. In 8, with a factor
/// for each row: e4m3 as compressed-tensors and transformers' quantize_fp8_per_row have it, or int8
/// as bitsandbytes' LLM.int8 (arXiv:2208.07339). Or in ggml's blocks, which a row has a whole
/// number of.
namespace sftrun::kernels {

/// Of 4 bits, sixteen values each: quantiles of a normal distribution, or floats of one sign, two
/// exponent and one mantissa bit. Of 8 bits; or one of ggml's types.
enum class QuantFormat : uint8_t { kNf4, kFp4, kFp8, kInt8, kGgml };

constexpr bool is_4bit(QuantFormat format) {
  return format == QuantFormat::kNf4 || format == QuantFormat::kFp4;
}
constexpr bool is_8bit(QuantFormat format) {
  return format == QuantFormat::kFp8 || format == QuantFormat::kInt8;
}

struct QuantOptions {
  QuantFormat format = QuantFormat::kNf4;  ///< not kGgml
  int64_t block_size = 64;                 ///< of 4 bits; even
  bool nested = true;  ///< of 4 bits: the blocks' factors are themselves quantised, to 8 bits
};

/// "nf4", "fp4", "fp8" or "int8".
const char* quant_name(QuantFormat format);
/// The format of such a name, or none.
std::optional<QuantFormat> quant_format(std::string_view name);
/// The value of each code of 4 bits.
std::span<const float, 16> quant_table(QuantFormat format);

struct QuantizedMatrix {
  QuantFormat format = QuantFormat::kNf4;
  weights::GgmlType ggml_type = weights::GgmlType::kF32;  ///< of kGgml: one with blocks
  int64_t rows = 0, columns = 0;
  int64_t block_size = 0;  ///< of 4 bits
  /// uint8. Of 4 bits [(rows * columns + 1) / 2]: two codes, the first in the high half. Of 8
  /// [rows * columns]. Of kGgml the rows' blocks, one after the other.
  at::Tensor packed;
  /// fp32. Of 4 bits [blocks]; of a nested one undefined. Of 8 [rows]: a code times its row's, of
  /// kInt8 over 127; undefined: codes are the values.
  at::Tensor absmax;
  /// absmax = map[codes] * nested_absmax + offset, where map is bitsandbytes' dynamic one
  /// (`nested_map`) and every weights::kNestedBlock blocks share a nested_absmax.
  at::Tensor codes;          ///< uint8 [blocks]
  at::Tensor nested_absmax;  ///< fp32 [ceil(blocks / 256)]
  at::Tensor nested_values;  ///< `nested_map` where the codes are, made by `to`; on CPU undefined
  float offset = 0;
  int64_t first_block = 0;  ///< what blocks count from where they share a nested_absmax

  bool is_nested() const { return codes.defined(); }
  int64_t numel() const { return rows * columns; }
  int64_t num_blocks() const { return (numel() + block_size - 1) / block_size; }
  uint64_t nbytes() const;
  int64_t row_bytes() const;  ///< of `packed`   @pre not of 4 bits, whose rows may share a byte
  /// Factors of blocks [first, first + factors.size()).
  void block_factors(int64_t first, std::span<float> factors) const;
  QuantizedMatrix to(at::Device device) const;
  /// Whether every so many rows a block of 4 bits begins.
  bool splits_at(int64_t num_rows) const;
  /// Some of the rows, without a copy.   @pre splits_at(first) and at(count)
  QuantizedMatrix narrow(int64_t first, int64_t count) const;
  /// The codes as values.   @pre format == kFp8
  QuantizedMatrix without_factors() const;
};

/// [256] fp32, on CPU: what the codes of nested factors stand for.
const at::Tensor& nested_map();

/// @param weight [rows, columns] contiguous, on CPU, fp32, bf16 or fp16. kInt8 takes it as fp16, as
/// bitsandbytes does.   @throws DataError naming `name` where values are no finite numbers, and for
/// kInt8 where they are beyond fp16
QuantizedMatrix quantize(const at::Tensor& weight, const QuantOptions& options,
                         const std::string& name = "?");
/// [rows, columns], each value code * factor in fp32, rounded once.   @param dtype as of weights
at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType dtype);
/// The same into memory of the caller's, such as some rows of a joint matrix.
/// @param out [rows, columns] contiguous, on the matrix' device, of a dtype as of weights; on CUDA
/// its rows may lie further apart than they are long
void dequantize_into(const QuantizedMatrix& matrix, const at::Tensor& out);
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

/// The codes [columns, rows] of a matrix in 8 bits, into `out` uint8. On CUDA.
void turn_codes_into(const QuantizedMatrix& matrix, const at::Tensor& out);

/// Activations in e4m3: x is about codes * factors.
struct RoundedRows {
  at::Tensor codes;    ///< [T, K]: on CPU the codes' values in fp32 or bf16, on CUDA kFloat8_e4m3fn
  at::Tensor factors;  ///< fp32 [T, 1]
};
/// As transformers' quantize_fp8_per_row.
/// @param x [T, K]   @param gains fp32 [K], which multiply x first, or undefined
RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains = {});

/// A matrix of a product, as it is or in fewer bits.
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
