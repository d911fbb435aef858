#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/layers/unit.h"
#include "sftrun/parallel/mesh_groups.h"
#include "sftrun/parallel/unit_shards.h"

/// How the parameters of a model are distributed over the ranks, and what the ranks communicate
/// (`parallel.strategy`).
namespace sftrun::parallel {

/// What a strategy distributes. Parameters and units must outlive it.
struct DistributedModel {
  layers::ParameterStore& parameters;
  std::vector<layers::Unit>& units;
  at::Device device;  ///< on which the units are used
};

/// Memory of a rank's device between its uses of units.
struct StoredBytes {
  std::optional<uint64_t> frozen;  ///< nullopt: all frozen tensors
  uint64_t trainable = 0;          ///< masters and copies in the compute dtype, and the kept start
  uint64_t gradients = 0;
  uint64_t unallocated = 0;  ///< of these, what gets its memory when a unit is first used
  StoredBytes& operator+=(const StoredBytes& other);
};
/// Masters, their copy in the compute dtype if it is another tensor, and gradients.
StoredBytes stored_bytes_of(const layers::FlatValues& flat);

/// A strategy is told by the stage what happens to units (`UnitHooks`) and by the trainer when a
/// step begins and ends; it decides where the values of parameters and gradients are. Every rank
/// makes the same calls in the same order. Quantities over all values (norm, finiteness) and whole
/// tensors (checkpoint, export) are asked of it, because this rank may own only a part of them.
class Strategy : public layers::UnitHooks {
 public:
  virtual std::string name() const = 0;  ///< as in parallel.strategy
  virtual const Mesh& mesh() const = 0;
  /// The values that this rank updates. Their device is the one that runs the optimizer.
  virtual const layers::OwnedValues& owned() const = 0;
  /// Keeps a copy of what passes read of the trained values, as they are now: before a checkpoint is
  /// read. `read_start` brings them back for a pass. A collective.
  /// @param reads_masters passes read fp32 masters beside the copies in the compute dtype
  virtual void keep_start(bool reads_masters);
  /// Sets the gradients to zero.
  virtual void begin_step() = 0;
  /// Completes the reductions: afterwards the gradients of `owned` are sums over all ranks.
  virtual void finish_step() = 0;
  /// Sum of squares of a quantity over the whole model, each value counted once.
  /// @param owned the part of this rank, [n] fp32   @return fp64 scalar on the device of the passes
  virtual at::Tensor squares(const at::Tensor& owned) = 0;
  /// Whether it holds on all ranks that own different values.
  virtual bool holds_everywhere(bool holds_here) = 0;
  /// Whether ranks own different values, so that `whole` communicates.
  virtual bool divides_parameters() const = 0;
  /// A tensor whose parts the ranks own.   @param part [n] of this rank; n may be 0
  /// @param begin of the part in the whole   @param numel of the whole   @return [numel]
  virtual at::Tensor whole(const at::Tensor& part, int64_t begin, int64_t numel) = 0;
  /// Tensor parallelism: the whole of a parameter, or of a tensor with one value for each of the
  /// parameter's values.   @param part of this rank, in the parameter's shape
  /// @return of shape `Parameter::whole_shape`
  virtual at::Tensor joined(const layers::Parameter& /*parameter*/, const at::Tensor& part) {
    return part;
  }
  virtual StoredBytes stored_bytes() const;
  /// Links of this rank's stage of a pipeline; null: this rank runs all units.
  virtual layers::StageLinks* links() { return nullptr; }
  /// Whether the ranks must communicate while a forward or backward pass runs. If so, passes are not
  /// captured as CUDA graphs.
  virtual bool communicates_in_passes() const = 0;

  /// The fp32 values of a parameter, of shape `whole_shape`.
  at::Tensor master_of(const layers::Parameter& parameter);
  /// Sets the values of a parameter, where this rank owns them.
  /// @param values fp32, of shape `whole_shape`
  void assign(const layers::Parameter& parameter, const at::Tensor& values);
};

struct StrategyOptions {
  std::string name = "single";                    ///< as in parallel.strategy
  int64_t bucket_cap_bytes = int64_t{25} << 20;   ///< whole values: gradients of one reduction
  at::ScalarType gradients_sent_as = at::kFloat;  ///< whole values: fp32 or bf16
  /// Whole values: gradients must be reduced while the backward pass runs, so passes are not captured
  /// as CUDA graphs. false: after a captured pass they are reduced when it has been launched, which
  /// takes little time for an adapter's gradients.
  bool overlaps_reduction = false;
  /// Sharded values: forward and backward passes read the fp32 masters of parameters, not only their
  /// copies in the compute dtype.
  bool passes_read_masters = false;
};
/// What a run asks for.   @param trains_base full or partial fine-tuning
/// @param backend_reads_masters layers::Backend::reads_masters
StrategyOptions strategy_options(const config::RunConfig& config, bool trains_base,
                                 bool backend_reads_masters);
/// Composes a part for each axis of the mesh.
/// @param groups whose communicator must outlive the strategy, unless it is a single process
/// @param shards of the model, if `dp_shard` divides parameters or parameters are in host memory;
/// else null
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, MeshGroups& groups,
                                        const DistributedModel& model,
                                        std::unique_ptr<UnitShards> shards = nullptr);

/// Sum of squares over what the ranks of a group own.   @param owned [n] fp32 of this rank
/// @return fp64 scalar on `device`, where the group communicates
at::Tensor squares_over(const at::Tensor& owned, Group& group, at::Device device);
/// Whether it holds on all ranks of the run.
bool holds_on_all(Communicator& comm, bool holds_here);
/// A tensor whose parts the ranks of a group have: see `Strategy::whole`.
/// @param part fp32 or an integer type
at::Tensor joined_parts(const at::Tensor& part, int64_t begin, int64_t numel, Group& group);

}  // namespace sftrun::parallel
