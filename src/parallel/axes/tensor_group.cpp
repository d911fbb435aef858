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

std::vector<std::vector<double>> TensorGroup::gather(const std::vector<double>& values,
                                                     at::Device device) const {
  const at::Tensor all = gather(at::tensor(values, at::kDouble).to(device)).cpu();
  std::vector<std::vector<double>> rows;
  for (int64_t row = 0; row < all.size(0); ++row) {
    const auto* first = all.const_data_ptr<double>() + row * all.size(1);
    rows.emplace_back(first, first + all.size(1));
  }
  return rows;
}

}  // namespace sftrun::parallel
