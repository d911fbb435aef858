#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "sftrun/parallel/strategy.h"
#include "whole_parameters.h"

namespace sftrun::parallel {

/// Pipeline parallelism: each rank holds the units of one stage, and passes hidden states to the
/// next stage and gradients to the one before. Several pipelines compute parts of the batch; the
/// gradients of a stage are summed over them as in data parallelism.
///
/// A tied embedding that trains is updated by the first stage. The last stage, whose head reads it
/// too, receives the values after each update and sends its gradients before the next one.
class PipelineStrategy final : public SingleStrategy, private layers::StageLinks {
 public:
  PipelineStrategy(const StrategyOptions& options, Communicator& comm,
                   const DistributedModel& model);
  std::string name() const override { return name_; }
  StoredBytes stored_bytes() const override;
  layers::StageLinks* links() override { return this; }

  void before(int64_t unit, layers::UnitPass pass) override;
  void gradients_ready(int64_t unit) override { reducer_.unit_ready(unit); }
  void begin_step() override;
  void finish_step() override;
  bool communicates_in_passes() const override { return true; }

  at::Tensor squares(const at::Tensor& owned) override;
  bool holds_everywhere(bool holds_here) override;
  bool divides_parameters() const override { return true; }
  at::Tensor whole(const at::Tensor& part, int64_t begin, int64_t numel) override;

 private:
  int64_t num_stages_after() const override { return mesh().sizes().pp - 1 - mesh().pp_rank(); }
  void send_hidden(const at::Tensor& hidden) override;
  void receive_hidden(const at::Tensor& hidden) override;
  void send_gradient(const at::Tensor& grad) override;
  void receive_gradient(const at::Tensor& grad) override;

  /// Sends that another stage may not have received yet.
  class Sends {
   public:
    /// @param most sends under way; the oldest ones are waited for
    void add(StartedCollective send, int64_t most);
    void wait_all();

   private:
    std::deque<StartedCollective> started_;
  };
  void connect_tied_ends();
  layers::FlatValues* borrowed() const;
  at::Tensor lent(const at::Tensor& flat) const;

  std::string name_;
  Communicator& comm_;
  DistributedModel model_;
  Group stages_, backward_;  // the same ranks; NCCL orders the calls of a group
  Group replicas_;
  GradReducer reducer_;
  Sends hidden_sends_, gradient_sends_;
  // A trained unit that the first stage owns and the last stage reads, too.
  std::optional<int64_t> tied_unit_;  // nullopt: none, or this rank runs another stage
  Group tied_ends_;                   // ranks of the first and the last stage
  StartedCollective lending_;
  uint64_t tied_version_ = 0;  // of the parameters that were sent or received last
};

}  // namespace sftrun::parallel
