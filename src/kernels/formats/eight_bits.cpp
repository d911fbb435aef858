#include <ATen/ATen.h>

#include <algorithm>

#include "../operands.h"
#include "../parallel.h"
#include "../row_kernels.h"
#include "cuda_formats.h"
#include "format_ops.h"
#include "require_finite.h"
#include "sftrun/kernels/cpu_table.h"
#include "thin_rows.h"
#include "whole_rows.h"

/// fp8 (e4m3 as in compressed-tensors and transformers' quantize_fp8_per_row) and int8 (as in
/// bitsandbytes' LLM.int8, arXiv:2208.07339): one scale per row.
/// Compiled with -ffp-contract=off: codes, scales and values are bit-equal to the references'.
namespace sftrun::kernels {
namespace {

at::Tensor as_finite_fp32(const at::Tensor& rows, const std::string& name) {
  const at::Tensor values = rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  require_finite(values, name);
  return values;
}

/// bitsandbytes converts weights to fp16 before it quantises them to int8.
at::Tensor as_fp16(const at::Tensor& rows, const std::string& name) {
  const at::Tensor halves = rows.to(at::kHalf).to(at::kFloat);
  if (!all_finite({halves.const_data_ptr<float>(), static_cast<size_t>(halves.numel())})) {
    throw DataError(fmt::format("tensor `{}` has NaN or values beyond 65504; int8 "
                                "quantises fp16 values, which end there",
                                name),
                    {}, "use fp8 or nf4; if these refuse it too, download the model again");
  }
  return halves;
}

using ValuesOf = at::Tensor (*)(const at::Tensor& rows, const std::string& name);
/// Writes the codes of a row of n values and returns its scale.
using QuantizeRow = float (*)(const float* values, int64_t n, uint8_t* codes);

QuantizedMatrix quantize_rows(const at::Tensor& weight, QuantFormat format, ValuesOf values_of,
                              QuantizeRow quantize_row, const std::string& name) {
  QuantizedMatrix matrix{.format = format, .rows = weight.size(0), .columns = weight.size(1)};
  matrix.packed = at::empty({matrix.numel()}, at::kByte);
  matrix.absmax = at::empty({matrix.rows}, at::kFloat);
  auto* codes = matrix.packed.data_ptr<uint8_t>();
  auto* scales = matrix.absmax.data_ptr<float>();
  const int64_t n = matrix.columns;
  // Converted to fp32 in parts, which limits temporary memory.
  constexpr int64_t kPart = 1 << 20;  // values
  const int64_t part = std::max<int64_t>(1, kPart / std::max<int64_t>(1, n));
  for (int64_t first = 0; first < matrix.rows; first += part) {
    const int64_t count = std::min(part, matrix.rows - first);
    const at::Tensor values = values_of(weight.narrow(0, first, count), name);
    const auto* from = values.const_data_ptr<float>();
    parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        scales[first + i] = quantize_row(from + i * n, n, codes + (first + i) * n);
    });
  }
  return matrix;
}

QuantizedMatrix quantize_to_e4m3(const at::Tensor& weight, const QuantOptions& options,
                                 const std::string& name) {
  return quantize_rows(weight, options.format, as_finite_fp32, cpu_kernels().quantize_row_e4m3,
                       name);
}

QuantizedMatrix quantize_to_int8(const at::Tensor& weight, const QuantOptions& options,
                                 const std::string& name) {
  return quantize_rows(weight, options.format, as_fp16, cpu_kernels().quantize_row_int8, name);
}

template <EightBits kCodes, typename T>
void unpack_rows(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, T* out, int64_t stride) {
  const auto* codes = matrix.packed.const_data_ptr<uint8_t>();
  const float* scales = matrix.absmax.defined() ? matrix.absmax.const_data_ptr<float>() : nullptr;
  for (int64_t i = 0; i < rows; ++i) {
    row_kernels<T>().dequantize_8bit(kCodes, codes + (row + i) * matrix.columns + column, columns,
                                     scales == nullptr ? 1.0F : scales[row + i], out + i * stride);
  }
}

int64_t bytes_of_codes(const QuantizedMatrix& matrix) {
  return matrix.columns;
}

void require_row_sizes(const QuantizedMatrix& matrix) {
  require_numel(matrix.packed, matrix.numel());
  if (matrix.absmax.defined()) require_numel(matrix.absmax, matrix.rows);
}

bool has_whole_groups_of_bytes(const QuantizedMatrix& w) {
  constexpr int64_t kGroup = 32;
  return w.columns % kGroup == 0;
}

template <EightBits kCodes>
at::Tensor thin_product_of_rows(const at::Tensor& x, const QuantizedMatrix& w) {
  const DotKernels& dots = cpu_kernels().dots;
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const ThinTokens tokens(in_fp32);
  const auto* codes = w.packed.const_data_ptr<uint8_t>();
  const float* scales = w.absmax.defined() ? w.absmax.const_data_ptr<float>() : nullptr;
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      const float scale = scales == nullptr ? 1.0F : scales[row];
      dots.dot_8bit({kCodes, codes + row * w.columns, &scale, w.columns}, w.columns, tokens.x,
                    tokens.count, out);
    };
  });
}

template <EightBits kCodes>
constexpr FormatOps ops_of_rows(QuantFormat format, decltype(FormatOps::quantize) quantize,
                                const FormatLaunches& cuda) {
  return {.format = format,
          .quantize = quantize,
          .unpack_fp32 = unpack_rows<kCodes, float>,
          .unpack_bf16 = unpack_rows<kCodes, uint16_t>,
          .row_bytes = bytes_of_codes,
          .splits_at = splits_at_any_row,
          .narrow = narrow_rows,
          .select_rows = select_whole_rows,
          .values_per_block = one_value_per_block,
          .part = part_of_rows,
          .require_sizes = require_row_sizes,
          .has_whole_groups = has_whole_groups_of_bytes,
          .thin_product = thin_product_of_rows<kCodes>,
          .cuda = &cuda};
}

}  // namespace

constinit const FormatOps kFp8Ops =
    ops_of_rows<EightBits::kE4m3>(QuantFormat::kFp8, quantize_to_e4m3, kE4m3Launches);
constinit const FormatOps kInt8Ops =
    ops_of_rows<EightBits::kInt8>(QuantFormat::kInt8, quantize_to_int8, kInt8Launches);

}  // namespace sftrun::kernels
