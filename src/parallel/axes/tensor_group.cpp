#include "sftrun/parallel/tensor_group.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::parallel {

void TensorGroup::sum(const at::Tensor& values) const {
  SFTRUN_CHECK(values.is_contiguous());
  if (values.numel() > 0) group_.all_reduce(values);
}

at::Tensor TensorGroup::gather(const at::Tensor& values) const {
  std::vector<int64_t> shape = values.sizes().vec();
  shape.insert(shape.begin(), size());
  const at::Tensor all = at::empty(shape, values.options());
  if (values.numel() > 0) group_.all_gather_into(all.flatten(), values.contiguous().flatten());
  return all;
}

}  // namespace sftrun::parallel
