#pragma once

#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::parallel {

/// One process: nothing is communicated. Also what the strategies with whole parameters share.
class SingleStrategy : public Strategy {
 public:
  /// @param world_size of the mesh, 1 for the strategy `single` itself
  explicit SingleStrategy(const DistributedModel& model, int world_size = 1, int rank = 0);
  std::string name() const override { return "single"; }
  const Mesh& mesh() const override { return mesh_; }
  const layers::OwnedValues& owned() const override { return owned_; }
  void begin_step() override;
  void finish_step() override {}
  at::Tensor squares(const at::Tensor& owned) override;
  bool holds_everywhere(bool holds_here) override { return holds_here; }
  bool divides_parameters() const override { return false; }
  at::Tensor whole(const at::Tensor& part, int64_t /*begin*/, int64_t /*numel*/) override {
    return part;
  }
  bool communicates_in_passes() const override { return false; }

 private:
  Mesh mesh_;
  layers::OwnedValues owned_;
};

/// Data parallelism: every rank has all parameters and computes a part of the batch. Gradients are
/// summed in buckets of adjacent units during the backward pass.
class DdpStrategy final : public SingleStrategy {
 public:
  DdpStrategy(const StrategyOptions& options, Communicator& comm, const DistributedModel& model);
  std::string name() const override { return "ddp"; }
  void gradients_ready(int64_t unit) override { reducer_.unit_ready(unit); }
  void finish_step() override { reducer_.finish(); }
  bool communicates_in_passes() const override { return overlaps_reduction_; }

 private:
  bool overlaps_reduction_;
  GradReducer reducer_;
};

}  // namespace sftrun::parallel
