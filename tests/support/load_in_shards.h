#pragma once

#include <memory>

#include "sftrun/config/run_config.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/unit_shards.h"

namespace sftrun::test {

/// The axes of a strategy: two ranks share a copy with `hybrid`, a pipeline has two stages, and two
/// ranks divide matrices.
inline parallel::Mesh mesh_of(config::Strategy strategy, const parallel::Communicator& comm) {
  const int world_size = comm.world_size();
  parallel::MeshSizes sizes;
  switch (strategy) {
    case config::Strategy::kPipeline:
      sizes.pp = 2;
      break;
    case config::Strategy::kTensor:
      sizes.tp = 2;
      break;
    default:
      if (config::level_of({.strategy = strategy}) != config::ShardLevel::kNone)
        sizes.dp_shard = strategy == config::Strategy::kHybrid ? 2 : world_size;
  }
  sizes.dp_replicate = world_size / (sizes.pp * sizes.dp_shard * sizes.tp);
  return {sizes, comm.rank()};
}

/// Makes a decoder with these options load as parts of the ranks. The first stage of a pipeline has
/// the embedding and a layer.
/// @return the parts; null: the strategy keeps whole parameters
inline std::unique_ptr<parallel::UnitShards> load_in_shards(config::Strategy strategy,
                                                            const parallel::Communicator& comm,
                                                            model::DecoderOptions& options,
                                                            bool frozen_on_host = false,
                                                            bool trained_on_host = false) {
  const parallel::Mesh mesh = mesh_of(strategy, comm);
  if (mesh.sizes().pp > 1)
    options.held = mesh.rank(parallel::Axis::kPp) == 0 ? layers::UnitRange{.first = 0, .end = 2}
                                                       : layers::UnitRange{.first = 2};
  const config::ShardLevel level = config::level_of({.strategy = strategy});
  if (level == config::ShardLevel::kNone && !frozen_on_host && !trained_on_host) return nullptr;
  parallel::Sharding sharding = parallel::sharding_of(level);
  sharding.frozen_on_host = frozen_on_host;
  sharding.trained_on_host = trained_on_host;
  auto parts = std::make_unique<parallel::UnitShards>(sharding, mesh);
  options.buffers = layers::BufferLayout::per_unit(mesh.sizes().dp_shard);
  options.on_unit_loaded = [of = parts.get()](int64_t index, layers::Unit& unit,
                                              layers::FlatValues* trained) {
    of->take(index, unit, trained);
  };
  options.leaves_frozen_unread = parts->takes_frozen();
  return parts;
}

}  // namespace sftrun::test
