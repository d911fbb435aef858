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

/// What a strategy divides over the ranks of `dp_shard`. Optimizer state and fp32 master weights are
/// always divided.
struct Sharding {
  bool gradients =
      false;  ///< reduced after each micro-batch; false: kept whole until the step ends
  bool parameters = false;  ///< gathered for each use, and the frozen bytes with them
};
/// @pre config::is_sharded(strategy)
Sharding sharding_of(config::Strategy strategy);

class UnitShards {
 public:
  /// @param mesh divides each unit into `dp_shard` equal parts
  UnitShards(const Sharding& sharding, const Mesh& mesh);

  /// Keeps this rank's part of a unit and releases its whole memory. Frozen tensors stay whole if
  /// parameters are not divided.   @param trained buffers of the unit; null: none of it trains
  void take(int64_t index, layers::Unit& unit, layers::FlatValues* trained);

  const Sharding& sharding() const { return sharding_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  friend class ShardedStrategy;
  struct Parts {
    at::Tensor frozen;  // [bytes / dp_shard] uint8; undefined: no frozen tensors, or they are whole
    at::Tensor master;  // [n / dp_shard] fp32; undefined: none of it trains
  };
  at::Tensor part_of(const at::Tensor& flat) const;
  Sharding sharding_;
  Mesh mesh_;
  std::vector<Parts> parts_;  // of each unit
};

}  // namespace sftrun::parallel
