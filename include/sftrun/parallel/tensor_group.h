#pragma once

#include "sftrun/layers/tensor_ranks.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh.h"

namespace sftrun::parallel {

/// The ranks that have the other parts of this rank's matrices. Every rank of the run must make it.
class TensorGroup final : public layers::TensorRanks {
 public:
  TensorGroup(Communicator& comm, const Mesh& mesh);
  int64_t rank() const override { return group_.rank(); }
  int64_t size() const override { return group_.size(); }
  void sum(const at::Tensor& values) const override;
  at::Tensor gather(const at::Tensor& values) const override;
  const Group& group() const { return group_; }

 private:
  mutable Group group_;  // collectives change its counts, not what it is
};

}  // namespace sftrun::parallel
