#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "sftrun/kernels/quant.h"

/// Operations of formats whose rows are whole numbers of bytes, with at most one scale beside each.
namespace sftrun::kernels {

inline bool splits_at_any_row(const QuantizedMatrix& /*matrix*/, int64_t /*num_rows*/) {
  return true;
}

inline QuantizedMatrix narrow_rows(const QuantizedMatrix& matrix, int64_t first, int64_t count) {
  const int64_t row_bytes = matrix.row_bytes();
  QuantizedMatrix some = matrix;
  some.rows = count;
  some.packed = matrix.packed.narrow(0, first * row_bytes, count * row_bytes);
  if (matrix.absmax.defined()) some.absmax = matrix.absmax.narrow(0, first, count);
  return some;
}

inline QuantizedMatrix select_whole_rows(const QuantizedMatrix& matrix, const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  some.packed = matrix.packed.view({matrix.rows, -1}).index_select(0, rows).flatten();
  if (matrix.absmax.defined()) some.absmax = matrix.absmax.index_select(0, rows);
  return some;
}

inline int64_t one_value_per_block(const QuantizedMatrix& /*matrix*/) {
  return 1;
}

/// A copy of some rows, or of some columns of all rows, which keep the scale of their whole row.
inline QuantizedMatrix part_of_rows(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  QuantizedMatrix some = matrix;
  const at::Tensor bytes = matrix.packed.view({matrix.rows, -1});
  // Bytes for each index of the dimension, as a fraction: a byte may be less than a value.
  const int64_t numerator = slice.dim == 0 ? 1 : bytes.size(1),
                denominator = slice.dim == 0 ? 1 : matrix.columns;
  std::vector<at::Tensor> packed, scales;
  for (const IndexRange& range : slice.ranges) {
    packed.push_back(bytes.narrow(slice.dim, range.begin * numerator / denominator,
                                  range.count * numerator / denominator));
    if (matrix.absmax.defined() && slice.dim == 0)
      scales.push_back(matrix.absmax.narrow(0, range.begin, range.count));
  }
  (slice.dim == 0 ? some.rows : some.columns) = slice.size();
  some.packed = at::cat(packed, slice.dim).flatten();
  if (!scales.empty()) some.absmax = at::cat(scales);
  return some;
}

}  // namespace sftrun::kernels
