#include "sftrun/config/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "choices.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

using Run = const RunConfig&;
using Model = const ModelFacts&;
using Parallel = const ParallelConfig&;
using enum KnownBy;

bool has_level(const Divisions& where, ShardLevel level) {
  switch (level) {
    case ShardLevel::kNone:
      return false;
    case ShardLevel::kOptimizer:
      return where.zero1;
    case ShardLevel::kGradients:
      return where.zero2;
    case ShardLevel::kWeights:
      return where.fsdp;
  }
  return false;
}

std::string joined_keys(std::initializer_list<std::pair<const char*, bool>> keys) {
  std::vector<std::string> chosen;
  for (const auto& [key, is_chosen] : keys)
    if (is_chosen) chosen.emplace_back(key);
  return join(chosen, " and ");
}

std::string without(const std::string& strategy, const std::string& keys) {
  return keys.empty() ? strategy : fmt::format("{} without {}", strategy, keys);
}

std::string undivided_stages(Parallel parallel) {
  return fmt::format("use parallel.strategy fsdp without {}",
                     parallel.device_map ? "parallel.device_map" : "parallel.pp");
}

std::string sharded_or_here(Parallel parallel) {
  return fmt::format("use {}, or remove parallel.offload.params",
                     strategy_instead(parallel, "fsdp"));
}

std::string without_context(Parallel) {
  return "remove parallel.cp: its processes then have parts of the batch";
}

bool quantises_state(const OptimizerInfo& optimizer) {
  return optimizer.division == StateDivision::kRanges;
}

/// The optimizers whose state can be divided, in alphabetical order.
std::vector<std::string> optimizers_of_parts(bool divides_columns) {
  std::vector<std::string> names = optimizer_names([&](const OptimizerInfo& info) {
    const bool divides = divides_columns ? info.divides_columns() : !info.needs_whole_matrices();
    return divides && !info.is_on_host();
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::string other_optimizer(Parallel parallel) {
  const std::string keys = joined_keys({{"parallel.tp", parallel.tp.has_value()},
                                        {"parallel.dp_shard", parallel.dp_shard.has_value()}});
  return fmt::format("use {}, or another optimizer: {}", without("parallel.strategy ddp", keys),
                     joined(optimizers_of_parts(parallel.axes.tp > 1), " or "));
}

constexpr auto kRefusals = std::to_array<Refusal>({
    // ---- Settings
    {.where = {.tp = true},
     .known_by = kSettings,
     .key = "tuning.lora.init",
     .applies =
         [](Run run, Model) {
           return run.tuning.trains_adapter() && run.tuning.lora.init == LoraInit::kPissa;
         },
     .message = "`tuning.lora.init: pissa` needs the singular values of whole matrices, and `{by}` "
                "divides them",
     .fix =
         [](Parallel parallel) {
           return "use tuning.lora.init default, or " + strategy_instead(parallel, "fsdp");
         }},
    {.where = {.tp = true},
     .known_by = kSettings,
     .key = "tuning.backend",
     .applies = [](Run run, Model) { return run.tuning.backend != TuningBackend::kFused; },
     .message = "`tuning.backend: {backend}` computes with whole matrices, and `{by}` divides them",
     .fix = [](Parallel) { return std::string("use tuning.backend fused"); },
     .values = [] { return std::vector<std::string>{"bnb"}; }},
    {.where = {.pp = true, .device_map = true},
     .known_by = kSettings,
     .key = "parallel.fetch",
     .applies = [](Run run, Model) { return run.parallel.fetch == Fetch::kPerStep; },
     .message = "`parallel.fetch: per_step` runs all micro-batches through a layer before the next "
                "layer, and a pipeline runs them one after the other through its stages",
     .fix = [](Parallel) { return std::string("remove parallel.fetch"); }},
    {.where = {.pp = true, .device_map = true, .tp = true},
     .known_by = kSettings,
     .key = "parallel.offload.base",
     .applies = [](Run run, Model) { return run.parallel.offload.base != Offload::kNone; },
     .message = "`parallel.offload.base` is not available with `{by}`",
     .fix =
         [](Parallel parallel) {
           return "remove parallel.offload.base, or use " + strategy_instead(parallel, "fsdp");
         }},
    {.where = {.pp = true, .device_map = true, .tp = true},
     .known_by = kSettings,
     .key = "parallel.offload.params",
     .applies = [](Run run, Model) { return run.parallel.offload.params != Offload::kNone; },
     .message = "`parallel.offload.params` is not available with `{by}`: each device keeps its "
                "part of the weights",
     .fix = sharded_or_here},
    {.where = {.zero1 = true, .zero2 = true},
     .known_by = kSettings,
     .key = "parallel.offload.params",
     .applies = [](Run run, Model) { return run.parallel.offload.params != Offload::kNone; },
     .message = "`{by}` keeps all weights on each device, and `parallel.offload.params` keeps "
                "trained ones in host memory",
     .fix = sharded_or_here},

    {.where = {.cp = true},
     .known_by = kSettings,
     .key = "tuning.backend",
     .applies = [](Run run, Model) { return run.tuning.backend != TuningBackend::kFused; },
     .message = "`tuning.backend: {backend}` computes whole sequences, and `{by}` divides them",
     .fix = [](Parallel) { return std::string("use tuning.backend fused"); },
     .values = [] { return std::vector<std::string>{"bnb"}; }},
    {.where = {.cp = true},
     .known_by = kSettings,
     .key = "train.objective",
     .applies =
         [](Run run, Model) {
           const ObjectiveInfo& objective = run.train.objective_info();
           return objective.has_scores() || objective.embeds();
         },
     .message = "a head of scores, and one that embeds, read tokens of whole sequences, and `{by}` "
                "divides them",
     .fix = without_context},
    {.where = {.cp = true},
     .known_by = kSettings,
     .key = "train.objective",
     .applies = [](Run run, Model) { return run.train.writes_answers(); },
     .message = "answers that the model writes in training are not available with `{by}`",
     .fix = without_context},
    {.where = {.cp = true},
     .known_by = kSettings,
     .key = "train.predict_with_generate",
     .applies = [](Run run, Model) { return run.train.predict_with_generate; },
     .message = "`train.predict_with_generate` is not available with `{by}`",
     .fix =
         [](Parallel) {
           return std::string(
               "remove train.predict_with_generate: `sftrun eval` answers prompts after the run");
         }},
    {.where = {.cp = true},
     .known_by = kSettings,
     .key = "train.neftune_noise_alpha",
     .applies = [](Run run, Model) { return run.train.neftune_noise_alpha.value_or(0) > 0; },
     .message = "`train.neftune_noise_alpha` makes noise for whole sequences, and `{by}` divides "
                "them",
     .fix =
         [](Parallel) { return std::string("remove train.neftune_noise_alpha or parallel.cp"); }},

    // ---- Optimizers
    {.where = {.tp = true},
     .known_by = kProcesses,
     .key = "train.optimizer",
     .applies = [](Run run, Model) { return quantises_state(optimizer_info(run.train.optimizer)); },
     .message = "train.optimizer {optimizer} quantises its state in blocks of consecutive values, "
                "and tensor parallelism divides matrices by columns, too",
     .fix =
         [](Parallel) {
           return std::string("use train.optimizer adamw; each process has a part of its state");
         },
     .values = [] { return optimizer_names(quantises_state); }},
    {.where = {.tp = true, .zero1 = true, .zero2 = true, .fsdp = true},
     .known_by = kProcesses,
     .key = "train.optimizer",
     .applies = [](Run run,
                   Model) { return optimizer_info(run.train.optimizer).needs_whole_matrices(); },
     .message = "train.optimizer {optimizer} computes each update from a whole matrix, and {by} "
                "divides matrices over the processes",
     .fix = other_optimizer,
     .values = [] { return optimizer_names(&OptimizerInfo::needs_whole_matrices); }},

    // ---- Models
    {.where = {.pp = true, .device_map = true},
     .known_by = kModel,
     .key = "",
     .applies = [](Run, Model model) { return model.shares_keys; },
     .message = "the layers of this model share keys, so they cannot be divided into stages",
     .fix = undivided_stages},
    {.where = {.pp = true, .device_map = true},
     .known_by = kModel,
     .key = "",
     .applies = [](Run, Model model) { return model.has_per_layer_inputs; },
     .message = "the layers of this model share per-layer inputs, so they cannot be divided into "
                "stages",
     .fix = undivided_stages},
    {.where = {.pp = true, .device_map = true},
     .known_by = kModel,
     .key = "",
     .applies = [](Run, Model model) { return model.balances_experts; },
     .message = "the routers' load-balancing loss counts over all layers, and a pipeline divides "
                "them over devices",
     .fix =
         [](Parallel parallel) {
           return "set train.router_aux_loss_coef: 0, or " + undivided_stages(parallel);
         }},
    {.where = {.tp = true},
     .known_by = kModel,
     .key = "",
     .applies = [](Run, Model model) { return model.norms_whole_queries; },
     .message = "tensor parallelism: the model normalises queries over all heads together, and "
                "each rank has only some of the heads",
     .fix =
         [](Parallel) {
           return std::string("use, without parallel.tp, parallel.strategy fsdp or pipeline");
         }},
});

}  // namespace

bool Divisions::has_any_of(const Axes& axes) const {
  const bool by_stages = axes.pp > 1 && (axes.stages_in_process ? device_map : pp);
  return by_stages || (tp && axes.tp > 1) || (cp && axes.cp > 1) || has_level(*this, axes.level);
}

std::string Divisions::setting(const ParallelConfig& parallel) const {
  const bool is_map = parallel.device_map || parallel.strategy == Strategy::kDeviceMap;
  if (is_map ? device_map : pp)
    if (std::string stages = stage_setting(parallel); !stages.empty()) return stages;
  if (tp)
    if (std::string matrices = tensor_setting(parallel); !matrices.empty()) return matrices;
  if (cp)
    if (std::string context = context_setting(parallel); !context.empty()) return context;
  if (!has_level(*this, level_of(parallel))) return {};
  ParallelConfig without_sizes;
  without_sizes.strategy = parallel.strategy;
  return level_of(without_sizes) == ShardLevel::kNone
             ? "parallel.dp_shard"
             : fmt::format("parallel.strategy: {}", word_of(parallel.strategy));
}

std::span<const Refusal> refusals() {
  return kRefusals;
}

std::string message_of(const Refusal& refusal, const RunConfig& run) {
  return fmt::format(fmt::runtime(refusal.message),
                     fmt::arg("by", refusal.where.setting(run.parallel)),
                     fmt::arg("optimizer", word_of(run.train.optimizer)),
                     fmt::arg("backend", word_of(run.tuning.backend)));
}

const Refusal* find_refusal(const RunConfig& run, const Axes& axes, const ModelFacts& model) {
  const auto* const found =
      std::find_if(kRefusals.begin(), kRefusals.end(), [&](const Refusal& refusal) {
        return refusal.where.has_any_of(axes) && refusal.applies(run, model);
      });
  return found == kRefusals.end() ? nullptr : &*found;
}

bool depends_on_model(const Axes& axes) {
  return std::any_of(kRefusals.begin(), kRefusals.end(), [&](const Refusal& refusal) {
    return refusal.known_by == kModel && refusal.where.has_any_of(axes);
  });
}

void require_possible(const RunConfig& run, const Axes& axes, KnownBy known_by,
                      const ModelFacts& model, const PlaceOfDivision& place_of) {
  for (const Refusal& refusal : kRefusals)
    if (refusal.known_by == known_by && refusal.where.has_any_of(axes) &&
        refusal.applies(run, model))
      throw ConfigError(message_of(refusal, run), place_of(refusal.where),
                        refusal.fix(run.parallel));
}

std::string strategy_instead(const ParallelConfig& parallel, const char* strategies) {
  return without(fmt::format("parallel.strategy {}", strategies),
                 joined_keys({{"parallel.device_map", parallel.device_map.has_value()},
                              {"parallel.pp", parallel.pp.value_or(1) > 1},
                              {"parallel.tp", parallel.tp.value_or(1) > 1}}));
}

std::string key_of_setting(const std::string& setting) {
  return setting.substr(0, setting.find(':'));
}

}  // namespace sftrun::config
