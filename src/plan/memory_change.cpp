#include "sftrun/plan/memory_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
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
  const StoredBlocks& blocks;

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
  StrategyChoice choice =
      with_strategy(here.arch, config, sizes, here.devices, here.stored, here.blocks);
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

std::optional<MemoryChange> divide_layers(config::RunConfig& config, const Situation& here) {
  return divide(config, here, {.strategy = config::Strategy::kPipeline},
                "the same result; stages wait for each other");
}

std::optional<MemoryChange> divide_matrices(config::RunConfig& config, const Situation& here) {
  if (config.parallel.axes.has_stages()) return std::nullopt;
  return divide(config, here,
                tensor_in_machine(here.devices.world_size, here.devices.local_world_size),
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
        with_strategy(here.arch, config, sizes, here.devices, here.stored, here.blocks);
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
                       !config.train.objective_info().is_of_documents();
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

/// What becomes of the result. Weights that wait on the host keep it, and a step is several times
/// slower: they come where results are slightly worse, after 4 bits.
enum class Result : uint8_t { kSame, kNearlySame, kWorse, kOther };

struct ChangeRow {
  Apply apply;
  Result result = Result::kSame;
  bool is_fitted = false;    ///< it depends on the memory that the others leave
  bool is_division = false;  ///< of the run over its devices: one of them at a time
};

/// In the order of their cost.
constexpr auto kChanges = std::to_array<ChangeRow>({
    {.apply = smaller_micro_batch, .is_fitted = true},
    {.apply = recompute_mlp},
    {.apply = recompute_layers},
    {.apply = divide_optimizer, .is_division = true},
    {.apply = divide_gradients, .is_division = true},
    {.apply = divide_weights, .is_division = true},
    {.apply = eight_bit_moments, .result = Result::kNearlySame},
    {.apply = optimizer_on_host},
    {.apply = activations_on_host},
    {.apply = combine_axes, .is_fitted = true, .is_division = true},
    {.apply = divide_layers, .is_division = true},
    {.apply = divide_matrices, .is_division = true},
    {.apply = train_adapter, .result = Result::kOther},
    {.apply = base_in_four_bits, .result = Result::kWorse},
    {.apply = base_on_host, .result = Result::kWorse},
    {.apply = fetch_for_each_micro_batch},
    {.apply = ends_in_four_bits, .result = Result::kWorse},
    {.apply = shorter_sequences, .result = Result::kOther, .is_fitted = true},
});

/// Some of the changes, by index.
using Chosen = std::vector<size_t>;

/// The order in which changes are applied: others exclude settings that do not go with a division,
/// not the division.
int phase_of(const ChangeRow& row) {
  return row.is_fitted ? 2 : row.is_division ? 0 : 1;
}
constexpr int kNumPhases = 3;

/// The run with these changes, whether it fits or not.
struct Attempt {
  CheapestChange result;
  Chosen applied;  ///< those that have a use
  bool fits = false;
};

Attempt attempt(const config::RunConfig& config, const Chosen& chosen, const Situation& here) {
  Attempt attempt{.result = {.changes = {}, .config = config, .plan = {}}};
  for (int phase = 0; phase < kNumPhases; ++phase) {
    for (const size_t index : chosen) {
      if (phase_of(kChanges[index]) != phase) continue;
      if (kChanges[index].is_fitted && here.fits(attempt.result.config))
        continue;  // the others are enough
      config::RunConfig changed = attempt.result.config;
      auto change = kChanges[index].apply(changed, here);
      if (!change || !refusal_of(here.arch, changed, here.blocks).empty()) continue;
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
  std::ranges::sort(tried, std::greater(),
                    [](size_t index) { return std::pair(kChanges[index].result, index); });
  for (const size_t index : tried) {
    Chosen fewer = best.applied;
    std::erase(fewer, index);
    std::sort(fewer.begin(), fewer.end());
    if (Attempt other = attempt(config, fewer, here); other.fits) best = std::move(other);
  }
  return best;
}

/// The first change that is enough alone.   @param least, result what becomes of the result
std::optional<Attempt> single_change(const config::RunConfig& config, Result least, Result result,
                                     const Situation& here) {
  for (size_t index = 0; index < kChanges.size(); ++index) {
    if (kChanges[index].result < least || kChanges[index].result > result) continue;
    Attempt single = attempt(config, {index}, here);
    if (single.fits && !single.applied.empty()) return single;
  }
  return std::nullopt;
}

Chosen joined(Chosen changes, const Chosen& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  std::ranges::sort(changes);
  return changes;
}

/// Changes that may be made together, of which one at most divides the run.
class Combinations {
 public:
  /// @param rounds_moments with those that nearly keep the result. They exclude parts of matrices.
  Combinations(const config::RunConfig& config, Result result, bool rounds_moments,
               const Situation& here)
      : config_(config), result_(result), here_(here) {
    for (size_t index = 0; index < kChanges.size(); ++index) {
      const Result its = kChanges[index].result;
      if (its <= result && (rounds_moments || its != Result::kNearlySame))
        candidates_.push_back(index);
    }
    std::ranges::stable_sort(candidates_, {}, [](size_t index) { return kChanges[index].result; });
    std::ranges::copy_if(candidates_, std::back_inserter(others_),
                         [](size_t index) { return !kChanges[index].is_division; });
  }

  /// Whether all of them are enough, with some division or none.
  bool can_fit() const {
    return can_fit_with({}) || std::ranges::any_of(candidates_, [&](size_t index) {
             return kChanges[index].is_division && can_fit_with({index});
           });
  }
  /// Two of them, or as few of the cheapest ones as needed.
  std::optional<Attempt> cheapest() const {
    if (auto two = pair()) return two;
    return several();
  }

 private:
  bool can_fit_with(const Chosen& division) const {
    return attempt(config_, joined(others_, division), here_).fits;
  }

  /// Whether combinations that leave more of the result lacked it. They are not enough.
  bool is_new(size_t index) const { return kChanges[index].result == result_; }

  std::optional<Attempt> pair() const {
    for (size_t second = 1; second < candidates_.size(); ++second)
      for (size_t first = 0; first < second && is_new(candidates_[second]); ++first) {
        if (kChanges[candidates_[first]].is_division && kChanges[candidates_[second]].is_division)
          continue;
        Attempt tried =
            attempt(config_, joined({candidates_[first]}, {candidates_[second]}), here_);
        if (tried.fits) return tried;
      }
    return std::nullopt;
  }

  std::optional<Attempt> several() const {
    Chosen others;
    std::vector<Chosen> divisions;
    if (can_fit_with({})) divisions.emplace_back();
    for (const size_t index : candidates_) {
      size_t first = 0;
      if (!kChanges[index].is_division) {
        others.push_back(index);
      } else if (can_fit_with({index})) {
        first = divisions.size();
        divisions.push_back({index});
      } else {
        continue;
      }
      if (!is_new(index)) continue;
      for (const Chosen& division : std::span(divisions).subspan(first))
        if (Attempt tried = attempt(config_, joined(others, division), here_); tried.fits)
          return without_needless(config_, std::move(tried), here_);
    }
    return std::nullopt;
  }

  const config::RunConfig& config_;
  Result result_;
  const Situation& here_;
  Chosen candidates_;  ///< in the order of their cost, those that change the result last
  Chosen others_;      ///< those that are no divisions
};

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
                                              int64_t memory_bytes, const StoredBlocks& blocks) {
  using enum Result;
  const Situation here{arch, devices, stored, memory_bytes, blocks};
  const auto with = [&](Result result, bool rounds_moments) {
    return Combinations(config, result, rounds_moments, here);
  };
  if (!with(kOther, false).can_fit() && !with(kOther, true).can_fit()) return std::nullopt;
  std::optional<Attempt> found = single_change(config, kSame, kNearlySame, here);
  const auto try_together = [&](Result result, bool rounds_moments) {
    if (found) return;
    const Combinations combinations = with(result, rounds_moments);
    if (combinations.can_fit()) found = combinations.cheapest();
  };
  try_together(kSame, false);
  try_together(kNearlySame, true);
  for (const Result result : {kWorse, kOther}) {
    if (!found) found = single_change(config, result, result, here);
    try_together(result, false);
    try_together(result, true);
  }
  if (!found) return std::nullopt;
  return std::move(found->result);
}

std::string memory_advice(const spec::ArchSpec& arch, const config::RunConfig& config,
                          const RunDevices& devices, const StoredBytes& stored,
                          const StoredBlocks& blocks) {
  constexpr double kLess = 0.9;
  if (!config.train.batch_size.value) return {};
  auto bytes = static_cast<int64_t>(
      kLess * static_cast<double>(memory_plan(arch, config, devices, stored).needed()));
  if (devices.memory_bytes > 0) bytes = std::min(bytes, static_cast<int64_t>(devices.memory_bytes));
  const auto change = cheapest_change(arch, config, devices, stored, bytes, blocks);
  if (!change) return {};
  std::vector<std::string> costs;
  for (const MemoryChange& one : change->changes) costs.push_back(one.cost);
  return fmt::format(
      "the cheapest change that fits by the plan: {} ({}); `sftrun memory-check` with this run's "
      "configuration shows the plan",
      join(change->settings(), " "), join(costs, "; "));
}

}  // namespace sftrun::plan
