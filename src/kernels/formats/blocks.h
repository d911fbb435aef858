#pragma once

#include <ATen/ATen.h>

#include "../operands.h"
#include "sftrun/kernels/quant.h"

/// For `FormatOps` of formats with two codes per byte and scales of blocks, nested or not.
namespace sftrun::kernels {

inline bool splits_at_block(const QuantizedMatrix& matrix, int64_t num_rows) {
  return num_rows * matrix.columns % matrix.block_size == 0;
}

inline QuantizedMatrix narrow_blocks(const QuantizedMatrix& matrix, int64_t first, int64_t count) {
  QuantizedMatrix some = matrix;
  some.rows = count;
  const int64_t block = first * matrix.columns / matrix.block_size;
  some.first_block = matrix.first_block + block;
  some.packed = matrix.packed.narrow(0, first * matrix.columns / 2, count * matrix.columns / 2);
  for (at::Tensor* part : {&some.absmax, &some.codes})
    if (part->defined()) *part = part->narrow(0, block, some.num_blocks());
  return some;
}

/// Block scales [blocks]; nested ones are dequantised with the index in the original matrix.
inline at::Tensor unpacked_scales(const QuantizedMatrix& matrix, const at::Tensor& blocks) {
  if (!matrix.is_nested()) return matrix.absmax.index_select(0, blocks);
  const at::Tensor map = matrix.codes.is_cpu() ? nested_map() : matrix.nested_values,
                   codes = matrix.codes.index_select(0, blocks).to(at::kInt),
                   shared = at::floor_divide(blocks + matrix.first_block, kNestedBlock);
  return map.index_select(0, codes)
      .mul_(matrix.nested_absmax.index_select(0, shared))
      .add_(matrix.offset);
}

inline QuantizedMatrix select_rows_of_blocks(const QuantizedMatrix& matrix,
                                             const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  some.packed = matrix.packed.view({matrix.rows, -1}).index_select(0, rows).flatten();
  const int64_t blocks = matrix.columns / matrix.block_size;  // per row
  const at::Tensor chosen = rows.to(at::kLong).unsqueeze(1) * blocks +
                            at::arange(blocks, rows.options().dtype(at::kLong));
  some.absmax = unpacked_scales(matrix, chosen.flatten());
  for (at::Tensor* part : {&some.codes, &some.nested_absmax, &some.nested_values}) part->reset();
  return some;
}

inline void require_block_sizes(const QuantizedMatrix& matrix) {
  require_numel(matrix.packed, (matrix.numel() + 1) / 2);
  require_numel(matrix.is_nested() ? matrix.codes : matrix.absmax, matrix.num_blocks());
}

}  // namespace sftrun::kernels
