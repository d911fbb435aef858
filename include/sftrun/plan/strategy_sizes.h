#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::plan {

struct RunDevices;

/// A strategy, with sizes of further axes.
struct StrategySizes {
  config::Strategy strategy = config::Strategy::kSingle;
  std::optional<int64_t> pp = {}, tp = {}, dp_shard = {};  ///< unset: as the strategy says
  std::string name() const;                                ///< "fsdp", "fsdp, tp 2"
  bool operator==(const StrategySizes&) const = default;
};

/// The strategy of a run, with the sizes that it does not imply: of `pipeline` and `tensor` also
/// their own where the run has copies.   @pre resolved axes
StrategySizes own_sizes(const config::ParallelConfig& parallel);

/// Whether the preset may be of use for such a run, of several processes.
bool is_tried(const config::StrategyRow& row, const config::TuningConfig& tuning,
              const RunDevices& devices);

/// Tensor parallelism alone, inside a machine: links between machines are too slow for it.
StrategySizes tensor_in_machine(int64_t world_size, int64_t local_world_size);

/// Combinations of fsdp with tensor parallelism inside a machine, and of pipelines over machines, or
/// halves of one, with fsdp: in the order in which `parallel.strategy: auto` tries them.
std::vector<StrategySizes> combinations(int64_t world_size, int64_t local_world_size);

}  // namespace sftrun::plan
