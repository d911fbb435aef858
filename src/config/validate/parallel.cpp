#include <fmt/format.h>

#include <array>
#include <set>

#include "choices.h"
#include "sftrun/config/refusals.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

/// Optimizers whose state may be in host memory, and is not yet.
std::vector<std::string> optimizers_to_offload() {
  return optimizer_names(
      [](const OptimizerInfo& info) { return info.on_host && !info.is_on_host(); });
}

constexpr auto kOffload = std::to_array<Rule>({
    {[](Run run) {
       const OffloadConfig& offload = run.parallel.offload;
       return offload.optimizer == Offload::kCpu && offload.params == Offload::kNone &&
              !optimizer_info(run.train.optimizer).on_host;
     },
     [](Run run) {
       return fmt::format(
           "`parallel.offload.optimizer` keeps the state of {} on the host, not "
           "that of {}",
           joined(optimizers_to_offload(), " and "), word_of(run.train.optimizer));
     },
     {"parallel.offload.optimizer", "train.optimizer"},
     [](Run) {
       return fmt::format("use train.optimizer {}, or set parallel.offload.optimizer: none",
                          joined(optimizers_to_offload(), " or "));
     }},
    {[](Run run) {
       return run.parallel.offload.activations == Offload::kCpu &&
              run.train.gradient_checkpointing != Checkpointing::kLayer;
     },
     [](Run run) {
       return fmt::format(
           "`parallel.offload.activations` moves what gradient checkpointing of "
           "whole layers keeps, and `train.gradient_checkpointing` is {}",
           word_of(run.train.gradient_checkpointing));
     },
     {"parallel.offload.activations"},
     "set train.gradient_checkpointing: true"},
});

constexpr auto kDeviceMaps = std::to_array<Rule>({
    {[](Run run) {
       const Strategy strategy = run.parallel.strategy;
       return run.parallel.device_map && strategy != Strategy::kAuto &&
              strategy != Strategy::kDeviceMap;
     },
     [](Run run) {
       return fmt::format("`parallel.device_map` is set, but `parallel.strategy` is {}",
                          word_of(run.parallel.strategy));
     },
     {"parallel.device_map", "parallel.strategy"},
     "remove one of them: a device map is one process with the layers on several GPUs"},
});

/// What the table of refusals knows before there are processes and a model.
void check_divisions(Checks& checks) {
  std::set<std::string> refused;
  for (const Refusal& row : refusals()) {
    const std::string setting = row.where.setting(checks.run().parallel);
    if (row.known_by != KnownBy::kSettings || setting.empty() || !row.applies(checks.run(), {}))
      continue;
    if (refused.insert(row.key).second)
      checks.error(message_of(row, checks.run()), {row.key, key_of_setting(setting).c_str()},
                   row.fix(checks.run().parallel));
  }
}

/// Sizes of axes compose, but for those of one process and of whole copies.
void check_sizes(Checks& checks) {
  const ParallelConfig& parallel = checks.run().parallel;
  const StrategyRow& strategy = strategy_row(parallel.strategy);
  const bool has_map = parallel.device_map || parallel.strategy == Strategy::kDeviceMap;
  const auto refuse = [&](const AxisRow& row, const char* reason) {
    if ((parallel.*row.asked).value_or(1) == 1) return;
    const char* other = parallel.device_map ? "parallel.device_map" : "parallel.strategy";
    checks.error(
        fmt::format("`{}` divides the processes of a run, and `{}` {}", row.key,
                    parallel.device_map ? std::string(other)
                                        : fmt::format("{}: {}", other, word_of(parallel.strategy)),
                    reason),
        {row.key, other}, fmt::format("remove {} or {}", row.key, other));
  };
  if (has_map || strategy.one_process) {
    for (const AxisRow& row : axis_rows())
      if (!has_map || row.axis != Axis::kPp)  // a device map has parts of the layers, too
        refuse(row, "has one process");
  }
  if (strategy.level == ShardLevel::kNone && !strategy.one_process)
    refuse(row_of(Axis::kDpShard), "keeps whole copies");
}

}  // namespace

void check_parallel(Checks& checks) {
  const RunConfig& run = checks.run();
  check_time(checks, "parallel.timeout", run.parallel.timeout, /*may_be_zero=*/false,
             "write 30m, the default");
  check_time(checks, "parallel.stall_after", run.parallel.stall_after, /*may_be_zero=*/false,
             "write 30s, the default");
  if (run.parallel.fetch == Fetch::kPerStep)
    checks.error(objective_refusals(run, "parallel.fetch"));
  checks.require(kOffload);
  if (run.parallel.offload.params != Offload::kNone && run.tuning.trains_adapter())
    checks.warn(
        fmt::format("parallel.offload.params saves little memory with tuning.mode {}: only the "
                    "adapter is trained. parallel.offload.base keeps frozen weights in host "
                    "memory",
                    word_of(run.tuning.mode)),
        "parallel.offload.params");
  check_divisions(checks);
  checks.require(kDeviceMaps);
  check_sizes(checks);
}

}  // namespace sftrun::config::relations
