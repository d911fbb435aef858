#include "sftrun/parallel/tensor_group.h"

#include <ATen/ATen.h>

#include "own_group.h"
#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

Group make_tensor_group(Communicator& comm, const Mesh& mesh) {
  return make_own_group(comm, "tensor", mesh.dp_size(), mesh.dp_rank(),
                        [&](int dp_rank) { return mesh.ranks_of_tensor_group(dp_rank); });
}

}  // namespace

TensorGroup::TensorGroup(Communicator& comm, const Mesh& mesh)
    : group_(make_tensor_group(comm, mesh)) {}

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
