#include "sftrun/config/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// One size, as the YAML has it.
struct Size {
  const char* key;
  std::optional<int64_t> value;
  const char* what;  ///< "the processes of one pipeline"
};

/// @param whole processes over which the size divides
[[noreturn]] void fail_to_divide(const Size& size, int64_t asked, int64_t whole, int world_size,
                                 const Places& places) {
  const std::string of_run =
      whole == world_size ? fmt::format("the {} processes of the run", whole)
                          : fmt::format("the {} processes that remain of {} after the other sizes",
                                        whole, world_size);
  const std::string near = near_divisors(whole, asked);
  throw ConfigError(size.value ? fmt::format("{} {} does not divide {}", size.key, asked, of_run)
                               : fmt::format("the default of {} is {}, which does not divide {}",
                                             size.key, asked, of_run),
                    place_of(places, size.value ? size.key : "parallel.strategy"),
                    near.empty() ? fmt::format("remove {}, or start more processes", size.key)
                                 : fmt::format("set {} to {}, {}", size.key, near, size.what));
}

/// Divides the processes, size by size.
class Division {
 public:
  Division(int world_size, const Places& places)
      : left_(world_size), world_size_(world_size), places_(places) {}

  int64_t left() const { return left_; }
  int64_t take(const Size& size, int64_t value) {
    if (left_ % value != 0) fail_to_divide(size, value, left_, world_size_, places_);
    left_ /= value;
    return value;
  }

 private:
  int64_t left_;
  int world_size_;
  const Places& places_;
};

/// The number of ranks that share one copy, where it is not set.
int64_t default_shards(const ParallelConfig& parallel, int64_t left, int64_t of_machine) {
  if (parallel.dp_replicate && left % *parallel.dp_replicate == 0)
    return left / *parallel.dp_replicate;
  return parallel.strategy == Strategy::kHybrid ? std::max<int64_t>(1, of_machine) : left;
}

}  // namespace

ShardLevel level_of(const ParallelConfig& parallel) {
  switch (parallel.strategy) {
    case Strategy::kZero1:
      return ShardLevel::kOptimizer;
    case Strategy::kZero2:
      return ShardLevel::kGradients;
    case Strategy::kZero3:
    case Strategy::kFsdp:
    case Strategy::kHybrid:
      return ShardLevel::kWeights;
    case Strategy::kSingle:
    case Strategy::kDdp:
      return ShardLevel::kNone;
    default:  // sizes decide
      return parallel.dp_shard.value_or(1) > 1 ? ShardLevel::kWeights : ShardLevel::kNone;
  }
}

std::string stage_setting(const ParallelConfig& parallel) {
  if (parallel.device_map) return "parallel.device_map";
  if (parallel.strategy == Strategy::kPipeline || parallel.strategy == Strategy::kDeviceMap)
    return fmt::format("parallel.strategy: {}", strategy_name(parallel.strategy));
  return parallel.pp.value_or(1) > 1 ? "parallel.pp" : "";
}

std::string tensor_setting(const ParallelConfig& parallel) {
  if (parallel.strategy == Strategy::kTensor) return "parallel.strategy: tensor";
  return parallel.tp.value_or(1) > 1 ? "parallel.tp" : "";
}

std::string model_division_setting(const ParallelConfig& parallel) {
  const std::string stages = stage_setting(parallel);
  return stages.empty() ? tensor_setting(parallel) : stages;
}

Axes axes_of(const ParallelConfig& parallel, int world_size, int local_world_size,
             const Places& places) {
  Axes axes;
  if (world_size == 1) {
    axes.stages_in_process = parallel.strategy == Strategy::kDeviceMap;
    if (axes.stages_in_process) axes.pp = parallel.pp.value_or(1);
    return axes;
  }
  const Size pp{"parallel.pp", parallel.pp, "the processes of one pipeline"},
      tp{"parallel.tp", parallel.tp, "the processes that divide each matrix"},
      shard{"parallel.dp_shard", parallel.dp_shard,
            "the processes that share one copy of the model"},
      replicate{"parallel.dp_replicate", parallel.dp_replicate, "the number of copies"};
  const int64_t others = parallel.dp_shard.value_or(1) * parallel.dp_replicate.value_or(1);
  const auto rest = [&](int64_t used) {
    return std::max<int64_t>(1, world_size / (used * others));
  };
  Division division(world_size, places);
  axes.pp = division.take(pp, parallel.pp.value_or(parallel.strategy == Strategy::kPipeline
                                                       ? rest(parallel.tp.value_or(1))
                                                       : 1));
  axes.tp = division.take(
      tp, parallel.tp.value_or(parallel.strategy == Strategy::kTensor ? rest(axes.pp) : 1));
  axes.level = level_of(parallel);
  if (axes.has_shards()) {
    axes.dp_shard =
        division.take(shard, parallel.dp_shard.value_or(default_shards(
                                 parallel, division.left(), local_world_size / axes.tp)));
  }
  axes.dp_replicate = division.left();
  if (parallel.dp_replicate && *parallel.dp_replicate != axes.dp_replicate)
    throw ConfigError(
        fmt::format("parallel.dp_replicate is {}, and {} processes with {} have {} copies of the "
                    "model",
                    *parallel.dp_replicate, world_size, describe(axes), axes.dp_replicate),
        place_of(places, replicate.key),
        fmt::format("set parallel.dp_replicate to {}, or remove it", axes.dp_replicate));
  return axes;
}

std::string describe(const Axes& axes) {
  std::vector<std::string> parts;
  const auto add = [&](int64_t size, const char* name) {
    if (size > 1) parts.push_back(fmt::format("{} {}", name, size));
  };
  if (axes.stages_in_process)
    parts.push_back(fmt::format("device_map {}", axes.pp));
  else
    add(axes.pp, "pipeline");
  switch (axes.level) {
    case ShardLevel::kNone:
      break;
    case ShardLevel::kOptimizer:
      add(axes.dp_shard, "zero1");
      break;
    case ShardLevel::kGradients:
      add(axes.dp_shard, "zero2");
      break;
    case ShardLevel::kWeights:
      add(axes.dp_shard, "fsdp");
      break;
  }
  add(axes.dp_replicate, "ddp");
  add(axes.tp, "tensor");
  return parts.empty() ? "single" : join(parts, " x ");
}

}  // namespace sftrun::config
