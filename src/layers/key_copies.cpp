#include "key_copies.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::layers {

KeyCopies::KeyCopies(const SequenceShare& share, int64_t num_heads, int64_t head_dim)
    : share_(&share), head_dim_(head_dim) {
  const int64_t size = share.size();
  SFTRUN_CHECK(num_heads % size == 0 || size % num_heads == 0);
  copies_ = num_heads % size == 0 ? 1 : size / num_heads;
  num_own_heads_ = num_heads * copies_ / size;
}

at::Tensor KeyCopies::columns_of(const at::Tensor& rows) const {
  if (copies_ == 1) return share_->columns_of(rows);
  return share_->columns_of(rows.reshape({rows.size(0), -1, 1, head_dim_})
                                .expand({-1, -1, copies_, -1})
                                .reshape({rows.size(0), -1}));
}

at::Tensor KeyCopies::rows_of(const at::Tensor& columns) const {
  const at::Tensor rows = share_->rows_of(columns);
  if (copies_ == 1) return rows;
  return rows.view({rows.size(0), -1, copies_, head_dim_})
      .sum(2, /*keepdim=*/false, at::kFloat)
      .to(rows.scalar_type())
      .view({rows.size(0), -1});
}

}  // namespace sftrun::layers
