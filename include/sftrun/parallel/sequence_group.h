#pragma once

#include <vector>

#include "sftrun/layers/sequence_share.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh_groups.h"

namespace sftrun::parallel {

/// The ranks that have the other tokens of this rank's sequences: the group along the axis `cp`.
class SequenceGroup final : public layers::SequenceRanks {
 public:
  explicit SequenceGroup(MeshGroups& groups) : group_(groups.along({Axis::kCp})) {}
  int64_t rank() const override { return group_.rank(); }
  int64_t size() const override { return group_.size(); }
  void sum(const at::Tensor& values) const override { group_.all_reduce(values); }
  void exchange(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                const std::vector<int64_t>& in_rows) const override {
    group_.all_to_all(out, in, out_rows, in_rows);
  }

 private:
  mutable Group group_;  // collectives change its counts, not what it is
};

}  // namespace sftrun::parallel
