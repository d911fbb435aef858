#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "sftrun/layers/copy_ranks.h"
#include "sftrun/parallel/group.h"
#include "sftrun/parallel/mesh_groups.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::parallel {

/// The ranks along `pp` and `tp` have one copy of the model; the first of them leads. The ranks along
/// `dp_shard` have the shards of its weights.
class MeshCopy final : public layers::CopyRanks {
 public:
  /// @param strategy of the model; must outlive it
  /// @param device on which the groups communicate
  /// @param gathers_units false: the caller keeps the units whole, and passes need not gather them
  MeshCopy(MeshGroups& groups, Strategy& strategy, at::Device device, bool gathers_units);

  bool leads() const override { return copy_.rank() == 0; }
  std::string from_lead(const std::string& text) override { return from(text, 0); }
  std::string from_head(const std::string& text) override { return from(text, head_); }
  void await_call() override;
  void call() override;
  int64_t max_of_shards(int64_t value) override;
  layers::UnitHooks* hooks() override { return gathers_units_ ? &strategy_ : nullptr; }
  layers::StageLinks* links() override { return strategy_.links(); }

 private:
  std::string from(const std::string& text, int root);
  Communicator& comm_;
  Strategy& strategy_;
  Group copy_, shards_;
  at::Device device_;
  bool gathers_units_;
  int head_;  // the first rank of the last stage
};

}  // namespace sftrun::parallel
