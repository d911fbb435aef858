#include "pooled_rows.h"

#include <ATen/ATen.h>

namespace sftrun::layers {
namespace {

/// Their weights are 1.
bool has_one_row_each(const PooledRows& pooling) {
  return pooling.documents.numel() == pooling.lengths.numel();
}

}  // namespace

at::Tensor pooled(const at::Tensor& rows, const PooledRows& pooling) {
  if (has_one_row_each(pooling)) return rows;
  // Not index_add: on CUDA the order of its additions varies.
  return at::segment_reduce(rows * pooling.weights.unsqueeze(1), "sum", pooling.lengths,
                            /*indices=*/{}, /*offsets=*/{}, /*axis=*/0, /*unsafe=*/true);
}

at::Tensor of_pooled_rows(const at::Tensor& gradient, const PooledRows& pooling) {
  const at::Tensor of_rows = gradient.index_select(0, pooling.documents);
  return has_one_row_each(pooling) ? of_rows : of_rows * pooling.weights.unsqueeze(1);
}

}  // namespace sftrun::layers
