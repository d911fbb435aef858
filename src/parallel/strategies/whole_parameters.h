#pragma once

#include <utility>
#include <vector>

#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::parallel {

/// Elements [begin, end) of each unit in the flat buffers of what this rank updates.
std::vector<std::pair<int64_t, int64_t>> owned_unit_ranges(const DistributedModel& model);

/// One process: nothing is communicated. Also what the strategies with whole parameters share.
class SingleStrategy : public Strategy {
 public:
  explicit SingleStrategy(const DistributedModel& model, const Mesh& mesh = Mesh::replicated(1, 0));
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
