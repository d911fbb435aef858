#pragma once

#include <vector>

#include "sftrun/layers/tensor_ranks.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh_groups.h"

namespace sftrun::parallel {

/// The ranks that have the other parts of this rank's matrices: the group along the axis `tp`.
class TensorGroup final : public layers::TensorRanks {
 public:
  explicit TensorGroup(MeshGroups& groups) : group_(groups.along({Axis::kTp})) {}
  int64_t rank() const override { return group_.rank(); }
  int64_t size() const override { return group_.size(); }
  void sum(const at::Tensor& values) const override;
  at::Tensor gather(const at::Tensor& values) const override;
  /// The values of each rank of the group.   @param device on which the group communicates
  std::vector<std::vector<double>> gather(const std::vector<double>& values,
                                          at::Device device) const;

 private:
  mutable Group group_;  // collectives change its counts, not what it is
};

}  // namespace sftrun::parallel
