#pragma once

#include <string>
#include <vector>

#include "sftrun/parallel/strategy.h"
#include "whole_parameters.h"

namespace sftrun::parallel {

/// Tensor parallelism: the ranks of a group have different parts of each matrix and compute the same
/// tokens; the layers exchange what they need (`layers::TensorRanks`). Several groups compute parts of
/// the batch; the gradients of a part are summed over them as in data parallelism.
///
/// Parameters are either divided, or equal on all ranks of a group. Of the latter some have complete
/// gradients on every rank; of the others each rank has a summand (`has_partial_gradient`).
class TensorStrategy final : public SingleStrategy {
 public:
  TensorStrategy(const StrategyOptions& options, Communicator& comm, const DistributedModel& model);
  std::string name() const override { return "tensor"; }
  void gradients_ready(int64_t unit) override { reducer_.unit_ready(unit); }
  void finish_step() override;
  bool communicates_in_passes() const override { return true; }

  at::Tensor squares(const at::Tensor& owned) override;
  bool holds_everywhere(bool holds_here) override;
  bool divides_parameters() const override { return true; }
  at::Tensor joined(const layers::Parameter& parameter, const at::Tensor& part) override;

 private:
  /// Elements of the flat buffers.
  struct Range {
    int64_t begin = 0, count = 0;
  };
  static void append(std::vector<Range>& ranges, const layers::OwnedValues::Piece& piece);

  Communicator& comm_;
  Group parts_, replicas_;
  GradReducer reducer_;
  std::vector<Range> summands_;  // gradients that are summed over the parts
  std::vector<Range> divided_;   // values that no other part has
};

}  // namespace sftrun::parallel
