#include "sftrun/plan/memory_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sftrun/core/strings.h"
#include "sftrun/plan/refusals.h"

namespace sftrun::plan {
namespace {

struct Situation {
  const spec::ArchSpec& arch;
  const RunDevices& devices;
  const StoredBytes& stored;
  int64_t memory_bytes;

  MemoryPlan plan(const config::RunConfig& config) const {
    return memory_plan(arch, config, devices, stored);
  }
  bool fits(const config::RunConfig& config) const { return plan(config).needed() <= memory_bytes; }
};

/// Applies one change. nullopt: it has no use for the run. What the run excludes is left out by
/// `attempt`.
using Apply = std::optional<MemoryChange> (*)(config::RunConfig& config, const Situation& here);

std::optional<MemoryChange> recompute(config::RunConfig& config, config::Checkpointing what,
                                      const char* setting, const char* cost) {
  config::Checkpointing& again = config.train.gradient_checkpointing;
  if (again == config::Checkpointing::kLayer || again == what) return std::nullopt;
  again = what;
  return MemoryChange{{setting}, cost};
}

std::optional<MemoryChange> recompute_mlp(config::RunConfig& config, const Situation& /*here*/) {
  if (config.train.gradient_checkpointing != config::Checkpointing::kNone) return std::nullopt;
  return recompute(config, config::Checkpointing::kMlp, "train.gradient_checkpointing=mlp",
                   "the same result; the MLPs are computed again in the backward pass");
}

std::optional<MemoryChange> recompute_layers(config::RunConfig& config, const Situation& /*here*/) {
  return recompute(config, config::Checkpointing::kLayer, "train.gradient_checkpointing=true",
                   "the same result; about a third more computation");
}

std::optional<MemoryChange> divide(config::RunConfig& config, const Situation& here,
                                   const StrategySizes& sizes, const char* cost) {
  if (here.devices.world_size == 1 || sizes == own_sizes(config.parallel)) return std::nullopt;
  StrategyChoice choice = with_strategy(here.arch, config, sizes, here.devices, here.stored);
  if (!choice.config) return std::nullopt;
  const config::ParallelConfig before = config.parallel;
  const std::optional<int64_t> accum = config.train.grad_accum.value;
  config = std::move(*choice.config);
  MemoryChange change{{fmt::format("parallel.strategy={}", config::strategy_name(sizes.strategy))},
                      cost};
  const auto set = [&](const char* key, const std::optional<int64_t>& size) {
    if (size) change.settings.push_back(fmt::format("{}={}", key, *size));
  };
  set("parallel.pp", sizes.pp);
  if (const auto& tp = config.parallel.tp; tp && *tp < here.devices.world_size)
    set("parallel.tp", tp);
  if (config.train.grad_accum.value != accum)
    set("train.grad_accum", config.train.grad_accum.value);
  const auto drop = [&](const char* key, const std::optional<int64_t>& had,
                        const std::optional<int64_t>& has) {
    if (had && !has) change.settings.push_back(fmt::format("{}=null", key));
  };
  drop("parallel.pp", before.pp, config.parallel.pp);
  drop("parallel.tp", before.tp, config.parallel.tp);
  drop("parallel.dp_shard", before.dp_shard, config.parallel.dp_shard);
  drop("parallel.dp_replicate", before.dp_replicate, config.parallel.dp_replicate);
  return change;
}

/// Whether each device keeps all weights, of a run on several devices.
bool keeps_whole_weights(const config::Axes& axes) {
  return axes.data_parts() > 1 && !axes.divides_model() && !axes.shards_weights();
}

std::optional<MemoryChange> divide_optimizer(config::RunConfig& config, const Situation& here) {
  const config::Axes& axes = config.parallel.axes;
  const bool is_of_use =
      keeps_whole_weights(axes) && !axes.has_shards() && !config.tuning.trains_adapter();
  if (!is_of_use) return std::nullopt;
  return divide(config, here, {.strategy = config::Strategy::kZero1},
                "the same result; weights are gathered once per step");
}

std::optional<MemoryChange> divide_gradients(config::RunConfig& config, const Situation& here) {
  const bool is_of_use =
      keeps_whole_weights(config.parallel.axes) && !config.tuning.trains_adapter();
  if (!is_of_use) return std::nullopt;
  return divide(config, here, {.strategy = config::Strategy::kZero2},
                "the same result; gradients are summed after each micro-batch");
}

std::optional<MemoryChange> divide_weights(config::RunConfig& config, const Situation& here) {
  if (!keeps_whole_weights(config.parallel.axes)) return std::nullopt;
  return divide(config, here, {.strategy = config::Strategy::kFsdp},
                "the same result; weights are gathered for each use");
}

std::optional<MemoryChange> divide_matrices(config::RunConfig& config, const Situation& here) {
  if (config.parallel.axes.has_stages()) return std::nullopt;
  return divide(config, here, {.strategy = config::Strategy::kTensor},
                "the same result; hidden states are summed four times for each layer, which needs "
                "fast links");
}

/// The first combination of axes with which the run fits; if there is none, that which needs least.
/// Applied after the other changes.
std::optional<MemoryChange> combine_axes(config::RunConfig& config, const Situation& here) {
  int64_t least = here.plan(config).needed();
  std::optional<StrategySizes> best;
  for (const StrategySizes& sizes :
       combinations(here.devices.world_size, here.devices.local_world_size)) {
    const StrategyChoice choice =
        with_strategy(here.arch, config, sizes, here.devices, here.stored);
    if (!choice.config) continue;
    const int64_t needed = here.plan(*choice.config).needed();
    if (needed >= least) continue;
    best = sizes, least = needed;
    if (needed <= here.memory_bytes) break;
  }
  if (!best) return std::nullopt;
  return divide(config, here, *best,
                best->tp ? "the same result; hidden states are summed four times for each layer, "
                           "which needs fast links, and weights are gathered for each use"
                         : "the same result; stages wait for each other, and weights are gathered "
                           "for each use");
}

std::optional<MemoryChange> eight_bit_moments(config::RunConfig& config,
                                              const Situation& /*here*/) {
  config::Optimizer& optimizer = config.train.optimizer;
  const auto smaller = config::optimizer_info(optimizer).smaller;
  if (!smaller) return std::nullopt;
  optimizer = *smaller;
  return MemoryChange{{fmt::format("train.optimizer={}", config::optimizer_info(*smaller).name)},
                      "nearly the same result: moments are kept in 8 bits"};
}

std::optional<MemoryChange> optimizer_on_host(config::RunConfig& config, const Situation& here) {
  config::Optimizer& optimizer = config.train.optimizer;
  const config::OptimizerInfo& info = config::optimizer_info(optimizer);
  if (!here.devices.on_gpu || !info.on_host || info.is_on_host()) return std::nullopt;
  optimizer = *info.on_host;
  config.parallel.offload.optimizer = config::Offload::kCpu;
  return MemoryChange{{"parallel.offload.optimizer=cpu"},
                      "the same result; each step moves the moments over PCIe"};
}

/// What `parallel.fetch: auto` becomes (src/config/resolve.cpp).
void resolve_fetch(config::RunConfig& config) {
  const config::OffloadConfig& offload = config.parallel.offload;
  const bool streams = offload.base == config::Offload::kCpu &&
                       offload.activations == config::Offload::kCpu &&
                       !config.train.objective_info().needs_sums();
  if (streams) config.parallel.fetch = config::Fetch::kPerStep;
}

std::optional<MemoryChange> fetch_for_each_micro_batch(config::RunConfig& config,
                                                       const Situation& /*here*/) {
  if (config.parallel.fetch != config::Fetch::kPerStep) return std::nullopt;
  config.parallel.fetch = config::Fetch::kPerMicroBatch;
  return MemoryChange{
      {"parallel.fetch=per_micro_batch"},
      "the same result; weights are copied for each micro-batch, not once per step"};
}

std::optional<MemoryChange> activations_on_host(config::RunConfig& config, const Situation& here) {
  config::Offload& offload = config.parallel.offload.activations;
  if (!here.devices.on_gpu || offload == config::Offload::kCpu) return std::nullopt;
  MemoryChange change{{},
                      "the same result; about a third more computation, and inputs of layers "
                      "cross PCIe twice"};
  if (const auto again = recompute_layers(config, here)) change.settings = again->settings;
  offload = config::Offload::kCpu;
  resolve_fetch(config);
  change.settings.emplace_back("parallel.offload.activations=cpu");
  return change;
}

std::optional<MemoryChange> train_adapter(config::RunConfig& config, const Situation& /*here*/) {
  if (config.tuning.trains_adapter()) return std::nullopt;
  config.tuning.mode = config::TuningMode::kLora;
  return MemoryChange{{"tuning.mode=lora"},
                      "a different result: an adapter is trained instead of the weights"};
}

std::optional<MemoryChange> base_in_four_bits(config::RunConfig& config, const Situation& here) {
  config::TuningConfig& tuning = config.tuning;
  const bool is_dense = !keeps_stored(tuning, !here.stored.empty()) && !tuning.quantises_base();
  if (!tuning.trains_adapter() || !is_dense) return std::nullopt;
  tuning.mode = config::TuningMode::kQlora;
  tuning.quant = config::quant_of(QuantFormat::kNf4);
  return MemoryChange{
      {"tuning.mode=qlora", "tuning.quant=nf4"},
      "a slightly worse result; frozen weights are dequantised for each matrix product"};
}

std::optional<MemoryChange> base_on_host(config::RunConfig& config, const Situation& here) {
  const bool is_on_host = config.parallel.offload.base == config::Offload::kCpu;
  if (!here.devices.on_gpu || is_on_host || config.tuning.mode == config::TuningMode::kFull)
    return std::nullopt;
  constexpr const char* kCost =
      "the same result; frozen weights cross PCIe twice for each micro-batch, or for each step "
      "with parallel.fetch: per_step";
  MemoryChange change{{"parallel.offload.base=cpu"}, kCost};
  config::ParallelConfig& parallel = config.parallel;
  parallel.offload.base = config::Offload::kCpu;
  // Without effect here, but refused beside it.
  if (std::exchange(parallel.pp, std::nullopt)) change.settings.emplace_back("parallel.pp=null");
  if (std::exchange(parallel.tp, std::nullopt)) change.settings.emplace_back("parallel.tp=null");
  resolve_fetch(config);
  return change;
}

std::optional<MemoryChange> ends_in_four_bits(config::RunConfig& config,
                                              const Situation& /*here*/) {
  config::TuningConfig& tuning = config.tuning;
  if (!tuning.trains_adapter() || !tuning.quantises_base() || tuning.quant_embeddings == true)
    return std::nullopt;
  tuning.quant_embeddings = true;
  return MemoryChange{{"tuning.quant_embeddings=true"},
                      "a slightly worse result: embedding and head are quantised, too"};
}

/// The largest micro-batch that fits and divides the run's own; 1 if none fits. Applied after the
/// other changes.
std::optional<MemoryChange> smaller_micro_batch(config::RunConfig& config, const Situation& here) {
  const int64_t before = config.train.batch_size.value.value(),
                accum = config.train.grad_accum.value.value_or(1);
  if (before == 1) return std::nullopt;
  for (int64_t size = before - 1; size >= 1; --size) {
    if (before % size != 0) continue;
    config.train.batch_size.value = size;
    config.train.grad_accum.value = accum * (before / size);
    if (size == 1 || here.fits(config)) break;
  }
  return MemoryChange{{fmt::format("train.batch_size={}", *config.train.batch_size.value),
                       fmt::format("train.grad_accum={}", *config.train.grad_accum.value)},
                      "the same result; more and smaller micro-batches, a little slower"};
}

/// The longest sequences that fit. Applied last.
std::optional<MemoryChange> shorter_sequences(config::RunConfig& config, const Situation& here) {
  constexpr int64_t kShortest = 128;
  const int64_t fitting =
      largest_seq_len(here.arch, config, here.devices, here.stored, here.memory_bytes);
  if (fitting >= config.model.max_seq_len || fitting < kShortest) return std::nullopt;
  config.model.max_seq_len = fitting;
  config.data.bin_tokens.value.reset();
  return MemoryChange{{fmt::format("model.max_seq_len={}", fitting)},
                      "a different result: longer examples are truncated or dropped"};
}

/// In the order of their cost.
constexpr std::array kChanges = std::to_array<Apply>(
    {smaller_micro_batch, recompute_mlp, recompute_layers, divide_optimizer, divide_gradients,
     divide_weights, eight_bit_moments, optimizer_on_host, activations_on_host, combine_axes,
     train_adapter, base_in_four_bits, divide_matrices, base_on_host, fetch_for_each_micro_batch,
     ends_in_four_bits, shorter_sequences});
/// Changes that depend on the memory that the others leave.
bool is_fitted(Apply change) {
  return change == smaller_micro_batch || change == combine_axes || change == shorter_sequences;
}

/// Some of the changes, by index.
using Chosen = std::vector<size_t>;

/// The run with these changes, whether it fits or not.
struct Attempt {
  CheapestChange result;
  Chosen applied;  ///< those that have a use
  bool fits = false;
};

Attempt attempt(const config::RunConfig& config, const Chosen& chosen, const Situation& here) {
  Attempt attempt{.result = {.changes = {}, .config = config, .plan = {}}};
  for (const bool fitted : {false, true}) {
    for (const size_t index : chosen) {
      if (is_fitted(kChanges[index]) != fitted) continue;
      if (fitted && here.fits(attempt.result.config)) continue;  // the others are enough
      config::RunConfig changed = attempt.result.config;
      auto change = kChanges[index](changed, here);
      if (!change || !refusal_of(here.arch, changed).empty()) continue;
      attempt.result.config = std::move(changed);
      attempt.result.changes.push_back(std::move(*change));
      attempt.applied.push_back(index);
    }
  }
  attempt.result.plan = here.plan(attempt.result.config);
  attempt.fits = attempt.result.plan.needed() <= here.memory_bytes;
  return attempt;
}

/// Without the changes that are not needed, the most expensive ones left out first.
Attempt without_needless(const config::RunConfig& config, Attempt best, const Situation& here) {
  Chosen tried = best.applied;
  std::sort(tried.rbegin(), tried.rend());
  for (const size_t index : tried) {
    Chosen fewer = best.applied;
    std::erase(fewer, index);
    std::sort(fewer.begin(), fewer.end());
    if (Attempt other = attempt(config, fewer, here); other.fits) best = std::move(other);
  }
  return best;
}

}  // namespace

std::vector<std::string> CheapestChange::settings() const {
  std::vector<std::string> all;
  for (const MemoryChange& change : changes)
    for (const std::string& setting : change.settings) {
      const std::string key = setting.substr(0, setting.find('=') + 1);  // a later one counts
      std::erase_if(all, [&](const std::string& before) { return before.starts_with(key); });
      all.push_back(setting);
    }
  return all;
}

std::optional<CheapestChange> cheapest_change(const spec::ArchSpec& arch,
                                              const config::RunConfig& config,
                                              const RunDevices& devices, const StoredBytes& stored,
                                              int64_t memory_bytes) {
  const Situation here{arch, devices, stored, memory_bytes};
  for (size_t index = 0; index < kChanges.size(); ++index) {
    Attempt single = attempt(config, {index}, here);
    if (single.fits && !single.applied.empty()) return std::move(single.result);
  }
  Chosen cheapest;
  for (size_t index = 0; index < kChanges.size(); ++index) {
    cheapest.push_back(index);
    Attempt together = attempt(config, cheapest, here);
    if (together.fits) return without_needless(config, std::move(together), here).result;
  }
  return std::nullopt;
}

std::string memory_advice(const spec::ArchSpec& arch, const config::RunConfig& config,
                          const RunDevices& devices, const StoredBytes& stored) {
  constexpr double kLess = 0.9;
  if (!config.train.batch_size.value) return {};
  auto bytes = static_cast<int64_t>(
      kLess * static_cast<double>(memory_plan(arch, config, devices, stored).needed()));
  if (devices.memory_bytes > 0) bytes = std::min(bytes, static_cast<int64_t>(devices.memory_bytes));
  const auto change = cheapest_change(arch, config, devices, stored, bytes);
  if (!change) return {};
  std::vector<std::string> costs;
  for (const MemoryChange& one : change->changes) costs.push_back(one.cost);
  return fmt::format(
      "the cheapest change that fits by the plan: {} ({}); `sftrun memory-check` with this run's "
      "configuration shows the plan",
      join(change->settings(), " "), join(costs, "; "));
}

}  // namespace sftrun::plan
