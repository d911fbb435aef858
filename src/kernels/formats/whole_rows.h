#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace sftrun::kernels
