#include <ATen/ATen.h>

#include "../row_kernels.h"
#include "cuda_formats.h"
#include "format_ops.h"
#include "sftrun/kernels/cpu_table.h"
#include "thin_rows.h"
#include "whole_rows.h"

/// ggml's block formats, kept as files have them; each row is a whole number of blocks.
/// Compiled with -ffp-contract=off: values are bit-equal to ggml's.
namespace sftrun::kernels {
namespace {

const weights::GgmlTypeInfo& type_of(const QuantizedMatrix& matrix) {
  return *weights::ggml_type_info(static_cast<uint32_t>(matrix.ggml_type));
}

int64_t values_of_ggml_block(const QuantizedMatrix& matrix) {
  return type_of(matrix).block_size;
}

int64_t bytes_of_blocks_in_row(const QuantizedMatrix& matrix) {
  const weights::GgmlTypeInfo& type = type_of(matrix);
  return matrix.columns / type.block_size * type.block_bytes;
}

template <typename T>
void unpack_ggml(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, T* out, int64_t stride) {
  const int64_t row_bytes = bytes_of_blocks_in_row(matrix);
  const auto* blocks = matrix.packed.const_data_ptr<uint8_t>() + row * row_bytes;
  for (int64_t i = 0; i < rows; ++i) {
    row_kernels<T>().dequantize_ggml(static_cast<uint32_t>(matrix.ggml_type),
                                     blocks + i * row_bytes, column, columns, out + i * stride);
  }
}

void require_no_sizes(const QuantizedMatrix& /*matrix*/) {}

bool has_whole_groups_of_32(const QuantizedMatrix& w) {
  constexpr int64_t kGroup = 32;
  return w.columns % kGroup == 0;
}

at::Tensor thin_product_of_ggml(const at::Tensor& x, const QuantizedMatrix& w) {
  const DotKernels& dots = cpu_kernels().dots;
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const ThinTokens tokens(in_fp32);
  const auto* blocks = w.packed.const_data_ptr<uint8_t>();
  const auto type = static_cast<uint32_t>(w.ggml_type);
  const int64_t row_bytes = w.packed.numel() / w.rows;
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      dots.dot_ggml(type, blocks + row * row_bytes, w.columns, tokens.x, tokens.count, out);
    };
  });
}

}  // namespace

constinit const FormatOps kGgmlOps = {.format = QuantFormat::kGgml,
                                      .quantize = nullptr,
                                      .unpack_fp32 = unpack_ggml<float>,
                                      .unpack_bf16 = unpack_ggml<uint16_t>,
                                      .row_bytes = bytes_of_blocks_in_row,
                                      .splits_at = splits_at_any_row,
                                      .narrow = narrow_rows,
                                      .select_rows = select_whole_rows,
                                      .values_per_block = values_of_ggml_block,
                                      .part = part_of_rows,
                                      .require_sizes = require_no_sizes,
                                      .has_whole_groups = has_whole_groups_of_32,
                                      .thin_product = thin_product_of_ggml,
                                      .cuda = &kGgmlLaunches};

}  // namespace sftrun::kernels
