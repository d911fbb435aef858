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
#include "sharded_gradients.h"
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
  const layers::OwnedValues& owned() const override { return kept_.owned(); }
  StoredBytes stored_bytes() const override;
  layers::FlatValues kept_of(int64_t unit) override { return kept_.unit(unit).values; }

  void keep_start(bool /*reads_masters*/) override { kept_.keep_start(); }  // as they are gathered
  bool keeps_start() const override { return kept_.keeps_start(); }
  void read_start(bool reads) override { model_.parameters.set_reads_start(reads); }

  void before(int64_t unit, layers::UnitPass pass) override;
  void after(int64_t unit, layers::UnitPass pass) override;
  bool await_frozen(int64_t unit) override;
  void gradients_ready(int64_t unit) override { gradients_.start_sum(unit); }
  void begin_step() override { gradients_.begin_step(); }
  void finish_step() override { gradients_.finish_step(); }
  bool communicates_in_passes() const override { return true; }

 private:
  /// A use of a unit. A negative unit: none.
  struct Use {
    int64_t unit = -1;
    layers::UnitPass pass = layers::UnitPass::kForward;
    auto operator<=>(const Use&) const = default;
  };
  struct UnitState {
    std::vector<StartedCollective> gathering;
    uint64_t version = 0;     // of the trained values that are here or arriving; 0: neither
    bool has_frozen = false;  // its frozen bytes are here or arriving
  };

  layers::FlatValues* buffers(int64_t unit) const { return model_.parameters.buffers_of(unit); }
  UnitState& state(int64_t unit) { return states_[static_cast<size_t>(unit)]; }
  /// Whether its current values are here or arriving.
  bool is_here(int64_t unit) const;
  void start_gathering(int64_t unit);
  void bring(UnitState& unit_state, const at::Tensor& flat, const at::Tensor& part, int64_t parts);
  void finish_gathering(int64_t unit);
  void gather_ahead(const Use& current);
  void release(int64_t unit);

  bool gathers_masters_;
  DistributedModel model_;
  std::unique_ptr<UnitShards> shards_;
  Group shard_group_;
  KeptValues kept_;
  ShardedGradients gradients_;
  std::vector<UnitState> states_;
  std::map<std::pair<Use, Use>, Use> followers_;  // of the two uses before
  Use last_, before_last_;
  std::optional<kernels::SideStream> copies_;  // from host memory; nullopt: none, or a CPU
};

}  // namespace sftrun::parallel
