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
    {Axis::kCp, "cp", "parallel.cp", "context", &Axes::cp, &ParallelConfig::cp,
     "the processes that share each sequence", /*divides_batches=*/false},
    {Axis::kTp, "tp", "parallel.tp", "tensor", &Axes::tp, &ParallelConfig::tp,
     "the processes that divide each matrix", /*divides_batches=*/false},
};
static_assert(std::size(kRows) == kNumAxes, "a row for each axis");
static_assert(offsetof(Axes, level) == kNumAxes * sizeof(int64_t), "a size for each axis");
static_assert(std::ranges::is_sorted(kRows, {}, &AxisRow::axis) &&
                  kRows[kNumAxes - 1].axis == Axis{kNumAxes - 1},
              "rows are in the order of the enumeration");

using Size = std::optional<int64_t>;

/// The default of hybrid's groups, which are those of a machine.
[[noreturn]] void fail_to_divide(const AxisRow& row, int64_t size, int64_t whole, int world_size,
                                 const Places& places) {
  const std::string of_run =
      whole == world_size ? fmt::format("the {} processes of the run", whole)
                          : fmt::format("the {} processes that remain of {} after the other sizes",
                                        whole, world_size);
  const std::string near = near_divisors(whole, size);
  throw ConfigError(
      fmt::format("the default of {} is {}, which does not divide {}", row.key, size, of_run),
      place_of(places, "parallel.strategy"),
      near.empty() ? fmt::format("set {} to 1, or start other numbers of processes", row.key)
                   : fmt::format("set {} to {}, {}", row.key, near, row.what));
}

/// Whether an axis takes the processes that sizes leave, so that every size must divide them.
bool has_free_axis(const ParallelConfig& parallel) {
  const auto& preset = strategy_row(parallel.strategy).axis;
  const bool shards = level_of(parallel) != ShardLevel::kNone;
  return (preset && !(parallel.*row_of(*preset).asked)) || (shards && !parallel.dp_shard);
}

/// The sizes that the YAML sets and that must divide the processes together. A number of copies that
/// nothing can fit is compared afterwards.
std::vector<const AxisRow*> dividing_sizes(const ParallelConfig& parallel) {
  std::vector<const AxisRow*> rows;
  for (const AxisRow& row : kRows) {
    if ((parallel.*row.asked).value_or(1) == 1) continue;
    if (row.axis == Axis::kDpReplicate && !has_free_axis(parallel)) continue;
    if (row.axis == Axis::kDpShard && level_of(parallel) == ShardLevel::kNone) continue;
    rows.push_back(&row);
  }
  return rows;
}

/// "2 or 4": the multiples of `product` around a number of processes.
std::string near_multiples(int64_t number, int64_t product) {
  const int64_t below = number / product * product;
  return below == 0 ? std::to_string(product) : fmt::format("{} or {}", below, below + product);
}

/// The last size that, with the others as they are, has another value that divides.
std::string other_size(const ParallelConfig& parallel, const std::vector<const AxisRow*>& rows,
                       int64_t product, int world_size) {
  for (size_t i = rows.size(); i-- > 0;) {
    const AxisRow& row = *rows[i];
    const int64_t size = *(parallel.*row.asked), others = product / size;
    if (world_size % others != 0) continue;
    const std::string near = near_divisors(world_size / others, size);
    return near.empty() ? fmt::format("remove {}", row.key)
                        : fmt::format("set {} to {}, {}", row.key, near, row.what);
  }
  return {};
}

/// @throws ConfigError if the sizes that are set do not divide the processes
void require_product(const ParallelConfig& parallel, int world_size, const Places& places) {
  constexpr int64_t kHuge = int64_t{1} << 40;  // four sizes of 65536 would overflow
  const std::vector<const AxisRow*> rows = dividing_sizes(parallel);
  int64_t product = 1;
  std::vector<std::string> sizes, found;
  for (const AxisRow* row : rows) {
    const int64_t size = *(parallel.*row->asked);
    if (product < kHuge) product *= size;
    sizes.push_back(fmt::format("{} {}", row->key, size));
    const std::string place = place_of(places, row->key);
    if (!place.empty()) found.push_back(place);
  }
  if (world_size % product == 0) return;
  const bool is_one = rows.size() == 1;
  const std::string text = join(sizes, " x "),
                    other = other_size(parallel, rows, product, world_size);
  throw ConfigError(product > world_size
                        ? fmt::format("{} {} {} processes, and the run has {}", text,
                                      is_one ? "needs" : "need", product, world_size)
                        : fmt::format("{}{} does not divide the {} processes of the run", text,
                                      is_one ? "" : fmt::format(" = {}", product), world_size),
                    join(found, "; "),
                    fmt::format("{}{}start {} processes", other, other.empty() ? "" : "; or ",
                                near_multiples(world_size, product)));
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
    if (left_ % size != 0) fail_to_divide(row, size, left_, world_size_, places_);
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

/// " with tp 2 and dp_shard 2": the sizes of a copy.
std::string with_sizes(const Axes& axes) {
  std::vector<std::string> sizes;
  for (const AxisRow& row : kRows)
    if (row.axis != Axis::kDpReplicate && axes.*row.ranks > 1)
      sizes.push_back(fmt::format("{} {}", row.name, axes.*row.ranks));
  return sizes.empty() ? "" : fmt::format(" with {}", joined(sizes, " and "));
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
  if (devices_of_part() == 1 && !has_stages()) return "process";
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

std::string context_setting(const ParallelConfig& parallel) {
  return parallel.cp.value_or(1) > 1 ? "parallel.cp" : "";
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
  require_product(parallel, world_size, places);
  Division division(world_size, places);
  for (const AxisRow& row : kRows) {
    if (row.divides_batches) continue;
    const bool is_preset = strategy_row(parallel.strategy).axis == row.axis;
    axes.*row.ranks = division.take(row, parallel.*row.asked,
                                    is_preset ? rest_for(row, parallel, world_size) : 1);
  }
  axes.level = level_of(parallel);
  if (axes.has_shards()) {
    axes.dp_shard = division.take(
        row_of(Axis::kDpShard), parallel.dp_shard,
        default_shards(parallel, division.left(), local_world_size / (axes.cp * axes.tp)));
  }
  axes.dp_replicate = division.left();
  if (parallel.dp_replicate && *parallel.dp_replicate != axes.dp_replicate)
    throw ConfigError(
        fmt::format("{} processes{} have room for {} {} of the model; parallel.dp_replicate is {}",
                    world_size, with_sizes(axes), axes.dp_replicate,
                    axes.dp_replicate == 1 ? "copy" : "copies", *parallel.dp_replicate),
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
