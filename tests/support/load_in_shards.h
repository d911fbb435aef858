#pragma once

#include <memory>

#include "sftrun/model/decoder.h"
#include "sftrun/parallel/unit_shards.h"

namespace sftrun::test {

/// Makes a decoder with these options load as parts of the ranks. Two ranks share a copy with
/// `hybrid`. A pipeline has two stages, and the first one the embedding and a layer.
/// @return the parts; null: the strategy keeps whole parameters
inline std::unique_ptr<parallel::UnitShards> load_in_shards(config::Strategy strategy,
                                                            const parallel::Communicator& comm,
                                                            model::DecoderOptions& options,
                                                            bool frozen_on_host = false,
                                                            bool trained_on_host = false) {
  if (strategy == config::Strategy::kPipeline)
    options.held = comm.rank() * 2 < comm.world_size() ? layers::UnitRange{.first = 0, .end = 2}
                                                       : layers::UnitRange{.first = 2};
  if (!config::is_sharded(strategy) && !frozen_on_host && !trained_on_host) return nullptr;
  parallel::Sharding sharding = parallel::sharding_of(strategy);
  sharding.frozen_on_host = frozen_on_host;
  sharding.trained_on_host = trained_on_host;
  const int world_size = comm.world_size(), shards = !config::is_sharded(strategy) ? 1
                                                     : strategy == config::Strategy::kHybrid
                                                         ? 2
                                                         : world_size;
  auto parts = std::make_unique<parallel::UnitShards>(
      sharding,
      parallel::Mesh({.dp_replicate = world_size / shards, .dp_shard = shards}, comm.rank()));
  options.buffers = layers::BufferLayout::per_unit(shards);
  options.on_unit_loaded = [of = parts.get()](int64_t index, layers::Unit& unit,
                                              layers::FlatValues* trained) {
    of->take(index, unit, trained);
  };
  options.leaves_frozen_unread = parts->takes_frozen();
  return parts;
}

}  // namespace sftrun::test
