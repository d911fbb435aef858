#include "sftrun/config/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr AxisRow kRows[] = {
    {Axis::kPp, "pp", "parallel.pp", "pipeline", &Axes::pp, &ParallelConfig::pp,
     "the processes of one pipeline", /*divides_batches=*/false},
    {Axis::kDpReplicate, "dp_replicate", "parallel.dp_replicate", "ddp", &Axes::dp_replicate,
     &ParallelConfig::dp_replicate, "the number of copies", /*divides_batches=*/true},
    {Axis::kDpShard, "dp_shard", "parallel.dp_shard", "", &Axes::dp_shard,
     &ParallelConfig::dp_shard, "the processes that share one copy of the model",
     /*divides_batches=*/true},
    {Axis::kTp, "tp", "parallel.tp", "tensor", &Axes::tp, &ParallelConfig::tp,
     "the processes that divide each matrix", /*divides_batches=*/false},
};
static_assert(std::size(kRows) == kNumAxes, "a row for each axis");
static_assert(offsetof(Axes, level) == kNumAxes * sizeof(int64_t), "a size for each axis");
static_assert(std::ranges::is_sorted(kRows, {}, &AxisRow::axis) &&
                  kRows[kNumAxes - 1].axis == Axis{kNumAxes - 1},
              "rows are in the order of the enumeration");

using Size = std::optional<int64_t>;

/// @param set as the YAML has it   @param whole processes over which the size divides
[[noreturn]] void fail_to_divide(const AxisRow& row, const Size& set, int64_t asked, int64_t whole,
                                 int world_size, const Places& places) {
  const std::string of_run =
      whole == world_size ? fmt::format("the {} processes of the run", whole)
                          : fmt::format("the {} processes that remain of {} after the other sizes",
                                        whole, world_size);
  const std::string near = near_divisors(whole, asked);
  throw ConfigError(set ? fmt::format("{} {} does not divide {}", row.key, asked, of_run)
                        : fmt::format("the default of {} is {}, which does not divide {}", row.key,
                                      asked, of_run),
                    place_of(places, set ? row.key : "parallel.strategy"),
                    near.empty() ? fmt::format("remove {}, or start more processes", row.key)
                                 : fmt::format("set {} to {}, {}", row.key, near, row.what));
}

/// Divides the processes, size by size.
class Division {
 public:
  Division(int world_size, const Places& places)
      : left_(world_size), world_size_(world_size), places_(places) {}

  int64_t left() const { return left_; }
  /// @param set as the YAML has it   @param otherwise the size if it is not set
  int64_t take(const AxisRow& row, const Size& set, int64_t otherwise) {
    const int64_t size = set.value_or(otherwise);
    if (left_ % size != 0) fail_to_divide(row, set, size, left_, world_size_, places_);
    left_ /= size;
    return size;
  }

 private:
  int64_t left_;
  int world_size_;
  const Places& places_;
};

/// The processes that the sizes of other axes leave to an axis.
int64_t rest_for(const AxisRow& row, const ParallelConfig& parallel, int world_size) {
  int64_t others = 1;
  for (const AxisRow& other : kRows)
    if (other.axis != row.axis) others *= (parallel.*other.asked).value_or(1);
  return std::max<int64_t>(1, world_size / others);
}

/// The number of ranks that share one copy, where it is not set.
int64_t default_shards(const ParallelConfig& parallel, int64_t left, int64_t of_machine) {
  if (parallel.dp_replicate && left % *parallel.dp_replicate == 0)
    return left / *parallel.dp_replicate;
  return strategy_row(parallel.strategy).shards_in_machine ? std::max<int64_t>(1, of_machine)
                                                           : left;
}

/// The word of a preset for ranks along an axis; "": there is none.
const char* word_for(const AxisRow& row, const Axes& axes) {
  if (row.axis == Axis::kPp && axes.stages_in_process) return "device_map";
  if (row.axis != Axis::kDpShard) return row.strategy;
  switch (axes.level) {
    case ShardLevel::kNone:
      return "";
    case ShardLevel::kOptimizer:
      return "zero1";
    case ShardLevel::kGradients:
      return "zero2";
    case ShardLevel::kWeights:
      return "fsdp";
  }
  return "";
}

}  // namespace

std::span<const AxisRow> axis_rows() {
  return kRows;
}

const AxisRow& row_of(Axis axis) {
  return kRows[static_cast<size_t>(axis)];
}

int64_t Axes::devices_of_part() const {
  int64_t devices = 1;
  for (const AxisRow& row : kRows)
    if (!row.divides_batches) devices *= this->*row.ranks;
  return devices;
}

const char* Axes::part_word() const {
  if (!divides_model()) return "process";
  return has_stages_alone() ? "pipeline" : "group";
}

ShardLevel level_of(const ParallelConfig& parallel) {
  if (const auto level = strategy_row(parallel.strategy).level) return *level;
  return parallel.dp_shard.value_or(1) > 1 ? ShardLevel::kWeights : ShardLevel::kNone;
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
  Division division(world_size, places);
  for (const AxisRow& row : kRows) {
    if (row.divides_batches) continue;
    const bool is_preset = strategy_row(parallel.strategy).axis == row.axis;
    axes.*row.ranks = division.take(row, parallel.*row.asked,
                                    is_preset ? rest_for(row, parallel, world_size) : 1);
  }
  axes.level = level_of(parallel);
  if (axes.has_shards()) {
    axes.dp_shard =
        division.take(row_of(Axis::kDpShard), parallel.dp_shard,
                      default_shards(parallel, division.left(), local_world_size / axes.tp));
  }
  axes.dp_replicate = division.left();
  if (parallel.dp_replicate && *parallel.dp_replicate != axes.dp_replicate)
    throw ConfigError(
        fmt::format("parallel.dp_replicate is {}, and {} processes with {} have {} copies of the "
                    "model",
                    *parallel.dp_replicate, world_size, describe(axes), axes.dp_replicate),
        place_of(places, row_of(Axis::kDpReplicate).key),
        fmt::format("set parallel.dp_replicate to {}, or remove it", axes.dp_replicate));
  return axes;
}

std::string describe(const Axes& axes) {
  std::vector<std::string> parts;
  for (const AxisRow& row : kRows) {
    const std::string_view word = word_for(row, axes);
    const int64_t ranks = axes.*row.ranks;
    if (word.empty() || (ranks == 1 && word != "device_map")) continue;
    // What shares one copy is named before the number of copies.
    const bool is_before_copies = row.axis == Axis::kDpShard && axes.dp_replicate > 1;
    parts.insert(parts.end() - (is_before_copies ? 1 : 0), fmt::format("{} {}", word, ranks));
  }
  return parts.empty() ? "single" : join(parts, " x ");
}

}  // namespace sftrun::config
