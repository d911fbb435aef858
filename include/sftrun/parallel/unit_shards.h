#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/layers/unit.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/mesh.h"

/// The parts of a model's units that one rank keeps, taken while the model is loaded.
namespace sftrun::parallel {

/// What a strategy divides over the ranks of `Mesh::shard_axes`. Optimizer state and fp32 master weights are
/// always divided.
struct Sharding {
  bool gradients =
      false;  ///< reduced after each micro-batch; false: kept whole until the step ends
  bool parameters = false;  ///< gathered for each use, and the frozen bytes with them
  /// Frozen bytes (or this rank's part) are kept in host memory and copied for each use.
  bool frozen_on_host = false;
  /// Trained values and their gradients (or this rank's part) are kept in host memory. Values are
  /// copied for each use, gradients after each backward pass.
  bool trained_on_host = false;

  /// Whether whole trained values are in memory only while they are used.
  bool releases_trained() const { return parameters || trained_on_host; }
  /// Whether whole gradients are in memory only during a backward pass.
  bool releases_gradients() const { return gradients || trained_on_host; }
};
Sharding sharding_of(config::ShardLevel level);

/// The parts of the units that this rank keeps.
class UnitShards {
 public:
  /// @param mesh divides each unit into `shards()` equal parts
  UnitShards(const Sharding& sharding, const Mesh& mesh);

  /// Keeps this rank's part of a unit, reading no more than that of tensors that are not in memory
  /// yet, and releases its whole memory. Frozen tensors stay as they are unless `takes_frozen`.
  /// @param trained buffers of the unit; null: none of it trains
  void take(int64_t index, layers::Unit& unit, layers::FlatValues* trained);

  /// Whether frozen tensors are divided, or kept on the host.
  bool takes_frozen() const { return sharding_.parameters || sharding_.frozen_on_host; }
  const Sharding& sharding() const { return sharding_; }
  const Mesh& mesh() const { return mesh_; }

  /// Ranks over which frozen bytes are divided.
  int64_t frozen_parts() const { return sharding_.parameters ? mesh_.shards() : 1; }
  /// This rank's part of a tensor that is divided into `parts`, as a view.
  at::Tensor part_of(const at::Tensor& flat, int64_t parts) const;

  /// What this rank keeps of a unit.
  struct Parts {
    /// [bytes / frozen_parts()] uint8; undefined: no frozen tensors, or they stay where they are
    at::Tensor frozen;
    at::Tensor master;  ///< [n / shards] fp32; undefined: none of it trains
  };
  /// Of a unit that was not taken: undefined ones.
  Parts& parts(int64_t unit);

 private:
  at::Tensor take_frozen(layers::FrozenStorage& frozen) const;
  at::Tensor take_masters(layers::Unit& unit, const layers::FlatValues& trained) const;
  Sharding sharding_;
  Mesh mesh_;
  std::vector<Parts> parts_;  // of each unit
};

/// The shards that a run asks for; null: whole parameters stay on the device. On a CPU all are in
/// host memory anyway.   @param config with resolved axes   @param mesh of these axes
std::unique_ptr<UnitShards> shards_of(const config::ParallelConfig& config, at::Device device,
                                      const Mesh& mesh);

}  // namespace sftrun::parallel
