#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kept_values.h"
#include "sftrun/kernels/side_stream.h"
#include "sftrun/parallel/mesh_groups.h"

namespace sftrun::parallel {

/// Gradients of units, which a backward pass needs whole. Their sums over the ranks of the shards go
/// to the part that each rank keeps, one unit at a time, while the pass goes on.
class ShardedGradients {
 public:
  /// @param kept must outlive this object   @param before_summing called before a unit's sum
  ShardedGradients(MeshGroups& groups, const DistributedModel& model, const KeptValues& kept,
                   std::function<void(int64_t unit)> before_summing);

  /// Before a backward pass of the unit: its whole gradients, zeros if it has none yet.
  void hold(int64_t unit);
  /// Starts to sum the whole gradients that a unit holds, and finishes the sum before.
  void start_sum(int64_t unit);
  void begin_step();
  /// Finishes all sums, then sums the parts over the replicas of the shards.
  void finish_step();

 private:
  struct UnitState {
    bool holds_whole = false;  // its whole gradients are in memory
    bool is_summed = false;    // the kept part has its gradients of this step
  };
  /// The sum that is under way.
  struct Sum {
    int64_t unit = -1;  // none
    StartedCollective started;
    at::Tensor part;  // undefined: summed into the gradients that are kept
    /// Gradients on the host: the sum over earlier micro-batches, on the device; undefined: none.
    at::Tensor earlier;
  };

  void start_sum_to_host(int64_t unit, bool adds);
  void finish_sum();
  void sum_over_replicas();
  UnitState& state(int64_t unit) { return states_[static_cast<size_t>(unit)]; }
  const at::Tensor& kept(int64_t unit) const { return kept_.unit(unit).values.grad; }
  const at::Tensor& whole(int64_t unit) const { return model_.parameters.buffers_of(unit)->grad; }

  DistributedModel model_;
  const KeptValues& kept_;
  std::function<void(int64_t)> before_summing_;
  Group shard_group_, replicas_;
  std::vector<UnitState> states_;
  Sum sum_;
  std::optional<kernels::SideStream> to_host_;  // nullopt: gradients stay on the device, or a CPU
};

}  // namespace sftrun::parallel
