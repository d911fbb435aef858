#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sftrun/kernels/side_stream.h"
#include "sftrun/parallel/mesh_groups.h"
#include "sftrun/parallel/unit_shards.h"
#include "values.h"

namespace sftrun::parallel {

/// Data parallelism over ranks that keep parts of the units: ZeRO stages 1 to 3 (arXiv:1910.02054),
/// which PyTorch's FSDP calls FULL_SHARD (3) and SHARD_GRAD_OP (about 2), and copies of such shards
/// on several groups of ranks (HYBRID_SHARD).
///
/// Frozen tensors are divided and gathered as bytes, whatever their format. Before a unit is used,
/// its parts are gathered into the memory where its tensors lie; the unit that followed it the last
/// time is gathered ahead, one at most. Frozen bytes, and trained values with their gradients, may be
/// kept in host memory, also where nothing is divided (ZeRO-Offload, arXiv:2101.06840). Masters and
/// optimizer states are never gathered for an update.
class ShardedValues final : public Values {
 public:
  /// @param gathers_masters forward and backward passes read the fp32 masters of all parameters
  ShardedValues(bool gathers_masters, MeshGroups& groups, const DistributedModel& model,
                std::unique_ptr<UnitShards> shards);
  const layers::OwnedValues& owned() const override { return owned_; }
  StoredBytes stored_bytes() const override;
  layers::FlatValues kept_of(int64_t unit) override { return state(unit).kept; }

  void before(int64_t unit, layers::UnitPass pass) override;
  void after(int64_t unit, layers::UnitPass pass) override;
  bool await_frozen(int64_t unit) override;
  void gradients_ready(int64_t unit) override;
  void begin_step() override;
  void finish_step() override;
  bool communicates_in_passes() const override { return true; }

 private:
  /// A use of a unit. A negative unit: none.
  struct Use {
    int64_t unit = -1;
    layers::UnitPass pass = layers::UnitPass::kForward;
    auto operator<=>(const Use&) const = default;
  };
  struct UnitState {
    layers::FlatValues kept;     // views of owned_.flat; undefined: none of it trains
    bool reads_masters = false;  // passes read its fp32 masters, so they are gathered
    std::vector<StartedCollective> gathering;
    uint64_t version = 0;          // of the trained values that are here or arriving; 0: neither
    bool has_frozen = false;       // its frozen bytes are here or arriving
    bool holds_gradients = false;  // its whole gradients are in memory
    bool is_reduced = false;       // `kept` has its gradients of this step
  };
  /// Gradients that are being reduced.
  struct Reduction {
    int64_t unit = -1;  // none
    StartedCollective started;
    at::Tensor sum;  // undefined: reduced into the gradients that are kept
    /// Gradients on the host: the sum over earlier micro-batches, on the device; undefined: none.
    at::Tensor earlier;
  };

  void own_parameters();
  layers::FlatValues allocated(int64_t numel) const;
  bool trains_on_host() const { return shards_->sharding().trained_on_host; }
  layers::FlatValues* buffers(int64_t unit) const { return model_.parameters.buffers_of(unit); }
  UnitState& state(int64_t unit) { return states_[static_cast<size_t>(unit)]; }
  /// Whether its current values are here or arriving.
  bool is_here(int64_t unit) const;
  void start_gathering(int64_t unit);
  void bring(UnitState& of, const at::Tensor& flat, const at::Tensor& part, int64_t parts);
  void finish_gathering(int64_t unit);
  void gather_ahead(const Use& current);
  void release(int64_t unit);
  void start_reduction(int64_t unit);
  void send_gradients(int64_t unit, bool adds);
  void finish_reduction();
  void sum_over_replicas();

  bool gathers_masters_;
  DistributedModel model_;
  at::Device device_;  // of the passes
  std::unique_ptr<UnitShards> shards_;
  Group shard_group_, replicas_;
  layers::OwnedValues owned_;
  std::vector<UnitState> states_;
  std::map<std::pair<Use, Use>, Use> followers_;  // of the two uses before
  Use last_, before_last_;
  Reduction reduction_;
  // From and to host memory; nullopt: none, or a CPU.
  std::optional<kernels::SideStream> copies_, sent_gradients_;
};

}  // namespace sftrun::parallel
