#include <fmt/format.h>

#include "choices.h"
#include "idle_rules/rules.h"
#include "sftrun/core/units.h"

namespace sftrun::config {
namespace {

std::string on_cpu(const RunConfig&, const RunFacts& facts) {
  return facts.on_gpu == false ? " on a CPU" : "";
}
std::string on_one_process(const RunConfig&, const RunFacts& facts) {
  return facts.world_size == 1 ? " on one process" : "";
}

/// Whether weights that a device does not keep are brought to it.
bool brings_weights(const ParallelConfig& parallel, const RunFacts& facts) {
  const StrategyRow& strategy = strategy_row(parallel.strategy);
  const bool may_divide = facts.world_size != 1 && (strategy.strategy == Strategy::kAuto ||
                                                    strategy.level == ShardLevel::kWeights);
  const bool offloads =
      parallel.offload.base == Offload::kCpu || parallel.offload.params == Offload::kCpu;
  return may_divide || (offloads && facts.on_gpu != false);
}

/// The setting because of which gradients are summed unit by unit, in fp32; empty: none.
std::string sums_by_unit(const ParallelConfig& parallel, const RunFacts& facts) {
  if (level_of(parallel) != ShardLevel::kNone)
    return strategy_row(parallel.strategy).level
               ? fmt::format("parallel.strategy {}", word_of(parallel.strategy))
               : std::string("parallel.dp_shard (fsdp)");
  if (facts.on_gpu == false) return "";  // nothing is offloaded
  if (parallel.offload.params == Offload::kCpu) return "parallel.offload.params";
  return parallel.offload.base == Offload::kCpu ? "parallel.offload.base" : "";
}

/// Why no gradients are sent in buckets; empty: they are, or may be.
std::string why_no_buckets(const RunConfig& run, const RunFacts& facts, const char* instead) {
  const ParallelConfig& parallel = run.parallel;
  if (facts.world_size == 1) return " on one process";
  if (parallel.device_map || parallel.strategy == Strategy::kDeviceMap)
    return " with parallel.device_map, which is one process";
  const Axes& axes = parallel.axes;
  if (const std::string setting = sums_by_unit(parallel, facts); !setting.empty())
    return fmt::format(" with {}, which sums gradients {}", setting, instead);
  return facts.world_size && axes.divides_model() && axes.dp_replicate * axes.cp == 1
             ? fmt::format(
                   " with parallel.strategy {} of all processes: no gradients are "
                   "summed over copies",
                   word_of(parallel.strategy))
             : "";
}

/// Why no micro-batch is captured (model/pass_graphs.cpp); empty: it is, or may be.
std::string why_no_graphs(const RunConfig& run, const RunFacts& facts) {
  const ParallelConfig& parallel = run.parallel;
  if (facts.on_gpu == false) return " on a CPU";
  if (run.tuning.backend != TuningBackend::kFused)
    return fmt::format(" with tuning.backend {}", word_of(run.tuning.backend));
  const ObjectiveInfo& objective = run.train.objective_info();
  if (objective.is_of_documents() || objective.needs_teacher) return with_objective(run);
  if (parallel.offload.activations == Offload::kCpu) return " with parallel.offload.activations";
  if (parallel.fetch == Fetch::kPerStep) return " with parallel.fetch per_step";
  const std::string setting = sums_by_unit(parallel, facts);
  if (!setting.empty()) return " with " + setting;
  if (const std::string divided = model_division_setting(parallel); !divided.empty())
    return " with " + divided;
  if (const std::string context = context_setting(parallel); !context.empty())
    return " with " + context;
  const bool overlaps = parallel.strategy == Strategy::kDdp && !run.tuning.trains_adapter();
  return overlaps ? fmt::format(" with tuning.mode {} on several devices", word_of(run.tuning.mode))
                  : "";
}

/// Why nothing is divided over the ranks of `dp_shard`; empty: something is, or may be.
std::string why_no_shards(const RunConfig& run, const RunFacts& facts) {
  const Axes& axes = run.parallel.axes;
  if (facts.world_size.value_or(1) == 1 || !axes.has_shards() || axes.shards() > 1) return "";
  return fmt::format(": parallel.dp_shard is 1 on {} processes ({}), so nothing is sharded",
                     *facts.world_size, describe(axes));
}

}  // namespace

IdleRules rules_of_devices() {
  return {
      {{"model.attention", "parallel.offload.optimizer", "parallel.offload.activations",
        "parallel.offload.base", "parallel.offload.params"},
       on_cpu},
      {{"parallel.device_map"},
       [](const RunConfig& run, const RunFacts& facts) {
         return run.parallel.pp.value_or(1) == 1 ? on_cpu(run, facts) : "";
       }},
      {{"parallel.strategy"},
       [](const RunConfig& run, const RunFacts& facts) {
         const bool is_whole = run.parallel.strategy == Strategy::kDeviceMap &&
                               run.parallel.pp.value_or(1) == 1;  // else stages are on the CPU
         return is_whole ? on_cpu(run, facts) : "";
       }},
      {{"model.attention"},
       [](const RunConfig& run, const RunFacts&) {
         return run.tuning.backend == TuningBackend::kFused
                    ? ""
                    : fmt::format(" with tuning.backend {}", word_of(run.tuning.backend));
       }},
      {{"train.deterministic"}, on_cpu},
      {{"train.cuda_graphs"},
       why_no_graphs,
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.cuda_graphs == CudaGraphs::kOff;
       }},
      {{"parallel.offload.base"},
       [](const RunConfig& run, const RunFacts&) {
         return run.tuning.mode == TuningMode::kFull ? " with tuning.mode full: no weight is frozen"
                                                     : "";
       }},
  };
}

IdleRules rules_of_processes() {
  const auto on_one_without_map = [](const RunConfig& run, const RunFacts& facts) {
    return run.parallel.strategy == Strategy::kDeviceMap ? "" : on_one_process(run, facts);
  };
  IdleRules rules = {
      {{"parallel.strategy"},
       on_one_without_map,
       [](const RunConfig& asked, const RunConfig&) {  // one copy of the model is what ddp has, too
         return asked.parallel.strategy == Strategy::kDdp ||
                asked.parallel.strategy == Strategy::kSingle;
       }},
      {{"parallel.strategy"}, why_no_shards},
  };
  for (const AxisRow& row : axis_rows())
    rules.push_back(
        {{row.key},
         row.axis == Axis::kPp ? decltype(IdleRule::reason)(on_one_without_map) : on_one_process,
         [&row](const RunConfig& asked, const RunConfig&) {
           return (asked.parallel.*row.asked).value_or(1) == 1;
         }});
  return rules;
}

IdleRules rules_of_communication() {
  return {
      {{"parallel.backend", "parallel.timeout", "parallel.stall_after"}, on_one_process},
      {{"parallel.stall_after"},
       [](const RunConfig& run, const RunFacts&) {
         const auto stall = parse_duration_s(run.parallel.stall_after);
         const auto timeout = parse_duration_s(run.parallel.timeout);
         return stall && timeout && *stall > *timeout / 3 ? " beyond a third of parallel.timeout"
                                                          : "";
       }},
      {{"parallel.fetch"},
       [](const RunConfig& run, const RunFacts& facts) {
         return brings_weights(run.parallel, facts)
                    ? ""
                    : ": each device keeps all weights that it uses";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.parallel.fetch == Fetch::kPerMicroBatch;
       }},
      {{"train.ddp_comm_hook"},
       [](const RunConfig& run, const RunFacts& facts) {
         return why_no_buckets(run, facts, "in fp32");
       }},
      {{"train.ddp_bucket_cap_mb"},
       [](const RunConfig& run, const RunFacts& facts) {
         return why_no_buckets(run, facts, "unit by unit");
       },
       [](const RunConfig& asked, const RunConfig& run) {  // for the case that auto is ddp
         return asked.parallel.strategy == Strategy::kAuto &&
                level_of(run.parallel) != ShardLevel::kNone;
       }},
  };
}

}  // namespace sftrun::config
