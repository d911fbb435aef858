#include "sftrun/plan/strategy_sizes.h"

#include <fmt/format.h>

#include "sftrun/plan/micro_batch.h"

namespace sftrun::plan {

std::string StrategySizes::name() const {
  std::string name(config::strategy_name(strategy));
  const auto add = [&](const char* key, const std::optional<int64_t>& size) {
    if (size) name += fmt::format(", {} {}", key, *size);
  };
  add("pp", pp), add("dp_shard", dp_shard), add("tp", tp);
  return name;
}

bool is_tried(const config::StrategyRow& row, const config::TuningConfig& tuning,
              const RunDevices& devices) {
  const bool is_one_machine = devices.local_world_size == devices.world_size;
  switch (row.tried) {
    case config::TriedFor::kNone:
      return false;
    case config::TriedFor::kAll:
      return true;
    case config::TriedFor::kModels:
      return !tuning.trains_adapter();
    case config::TriedFor::kSeveralMachines:
      return !is_one_machine && devices.local_world_size > 1 &&
             devices.world_size % devices.local_world_size == 0;
    case config::TriedFor::kGpusOfOneMachine:
      return is_one_machine && devices.on_gpu;
  }
  return false;
}

std::vector<StrategySizes> combinations(int64_t world, int64_t local) {
  using enum config::Strategy;
  std::vector<StrategySizes> found;
  for (int64_t tp = 2; tp <= local && tp < world; tp *= 2)
    if (local % tp == 0) found.push_back({.strategy = kFsdp, .tp = tp});
  const int64_t stages = local < world ? world / local : 2;
  if (stages < world && world % stages == 0) found.push_back({.strategy = kFsdp, .pp = stages});
  return found;
}

StrategySizes tensor_in_machine(int64_t world, int64_t local) {
  StrategySizes sizes{.strategy = config::Strategy::kTensor};
  if (local > 1 && local < world) sizes.tp = local;
  return sizes;
}

StrategySizes own_sizes(const config::ParallelConfig& parallel) {
  using enum config::Strategy;
  StrategySizes own{.strategy = parallel.strategy};
  const config::Axes& axes = parallel.axes;
  const bool has_copies = axes.dp_replicate > 1;
  if (axes.pp > 1 && parallel.strategy != kDeviceMap &&
      (parallel.strategy != kPipeline || has_copies))
    own.pp = axes.pp;
  if (axes.tp > 1 && (parallel.strategy != kTensor || has_copies)) own.tp = axes.tp;
  const bool is_divided = parallel.strategy == kPipeline || parallel.strategy == kTensor;
  if (axes.dp_shard > 1 && is_divided) own.dp_shard = axes.dp_shard;
  return own;
}

}  // namespace sftrun::plan
