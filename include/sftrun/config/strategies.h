#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sftrun/config/axes.h"
#include "sftrun/core/name_list.h"
#include "sftrun/core/rows.h"

/// The values of `parallel.strategy`: presets of axes, one row each. What a run does follows from its
/// axes (axes.h); only the names, the defaults of sizes and the choice among presets are here.
namespace sftrun::config {

enum class Strategy {
  kAuto,
  kSingle,
  kDdp,
  kZero1,
  kZero2,
  kZero3,
  kFsdp,
  kHybrid,
  kPipeline,
  kTensor,
  kDeviceMap
};

/// The runs for which memory-check and `auto` try a preset.
enum class TriedFor : uint8_t {
  kNone,
  kAll,
  kModels,  ///< that train the model itself: the state of an adapter is too small to divide
  kSeveralMachines,  ///< with several processes each
  kGpusOfOneMachine,
};

struct StrategyRow {
  Strategy strategy;
  std::string_view name;
  NameList aliases = {};
  bool one_process = false;
  /// The axis that has all processes which other sizes leave, where it is one that divides the model.
  std::optional<Axis> axis = {};
  /// What the ranks of `dp_shard` divide. Unset: the weights, if the size of that axis is given.
  std::optional<ShardLevel> level = {};
  bool shards_in_machine = false;  ///< by default the ranks that share one copy are one machine's
  std::optional<Strategy> same = {};  ///< an earlier name of that strategy
  TriedFor tried = TriedFor::kNone;
  /// Tried by `auto` before what divides the model: those that divide less, and over fewer ranks,
  /// first.
  bool by_auto = false;
};

inline constexpr auto kStrategies = std::to_array<StrategyRow>({
    {.strategy = Strategy::kAuto, .name = "auto"},
    {.strategy = Strategy::kSingle,
     .name = "single",
     .one_process = true,
     .level = ShardLevel::kNone},
    {.strategy = Strategy::kDdp,
     .name = "ddp",
     .level = ShardLevel::kNone,
     .tried = TriedFor::kAll,
     .by_auto = true},
    {.strategy = Strategy::kZero1,
     .name = "zero1",
     .level = ShardLevel::kOptimizer,
     .tried = TriedFor::kModels,
     .by_auto = true},
    {.strategy = Strategy::kZero2,
     .name = "zero2",
     .aliases = {"shard_grad_op"},
     .level = ShardLevel::kGradients,
     .tried = TriedFor::kModels,
     .by_auto = true},
    {.strategy = Strategy::kZero3,
     .name = "zero3",
     .level = ShardLevel::kWeights,
     .same = Strategy::kFsdp},
    {.strategy = Strategy::kFsdp,
     .name = "fsdp",
     .aliases = {"fsdp2", "full_shard"},
     .level = ShardLevel::kWeights,
     .tried = TriedFor::kAll,
     .by_auto = true},
    {.strategy = Strategy::kHybrid,
     .name = "hybrid",
     .aliases = {"hybrid_shard"},
     .level = ShardLevel::kWeights,
     .shards_in_machine = true,
     .tried = TriedFor::kSeveralMachines,
     .by_auto = true},
    {.strategy = Strategy::kPipeline,
     .name = "pipeline",
     .axis = Axis::kPp,
     .tried = TriedFor::kAll},
    {.strategy = Strategy::kTensor, .name = "tensor", .axis = Axis::kTp, .tried = TriedFor::kAll},
    {.strategy = Strategy::kDeviceMap,
     .name = "device_map",
     .one_process = true,
     .tried = TriedFor::kGpusOfOneMachine},
});
static_assert(are_in_order(kStrategies, &StrategyRow::strategy));

constexpr const StrategyRow& strategy_row(Strategy strategy) {
  return kStrategies[static_cast<size_t>(strategy)];
}

}  // namespace sftrun::config
