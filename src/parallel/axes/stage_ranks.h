#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "sftrun/parallel/mesh_groups.h"
#include "values.h"

namespace sftrun::parallel {

/// The axis `pp`: each rank holds the units of one stage, and passes hidden states to the next stage
/// and gradients to the one before.
///
/// A tied embedding that trains is updated by the first stage. The last stage, whose head reads it
/// too, receives the values after each update and sends its gradients before the next one: ranks
/// with the same places along the other axes exchange what both of them keep.
class StageRanks final : public layers::StageLinks {
 public:
  /// @param values must outlive it; it is told when they are read
  StageRanks(MeshGroups& groups, const DistributedModel& model, Values& values);
  /// After the sums over data-parallel ranks: brings the gradients of a tied unit together.
  void finish_step();
  /// Brings the values of a tied unit to the last stage, if it has others. Both stages call it.
  void bring_tied_values() {
    if (tied_unit_) bring_tied_values(*tied_unit_);
  }

  int64_t num_stages_after() const override { return stages_.size() - 1 - stages_.rank(); }
  void send_hidden(const at::Tensor& hidden) override;
  void receive_hidden(const at::Tensor& hidden) override;
  void send_gradient(const at::Tensor& grad) override;
  void receive_gradient(const at::Tensor& grad) override;

 private:
  /// Sends that another stage may not have received yet.
  class Sends {
   public:
    /// @param max sends under way; the oldest ones are waited for
    void add(StartedCollective send, int64_t max);
    void wait_all();

   private:
    std::deque<StartedCollective> started_;
  };
  bool is_first() const { return stages_.rank() == 0; }
  void connect_neighbours(Communicator& comm);
  void connect_tied_ends(MeshGroups& groups);
  void bring_tied_values(int64_t unit);

  DistributedModel model_;
  Values& values_;
  Group stages_, backward_;  // the same ranks; NCCL orders the calls of a group
  Sends hidden_sends_, gradient_sends_;
  // A trained unit that the first stage owns and the last stage reads, too.
  std::optional<int64_t> tied_unit_;  // nullopt: none, or this rank runs another stage
  Group tied_ends_;                   // ranks of the first and the last stage
  StartedCollective lending_;
  uint64_t tied_version_ = 0;  // of the parameters that were sent or received last
};

}  // namespace sftrun::parallel
