#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "choices.h"
#include "sftrun/config/refusals.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

std::string places_of(const Places& places, std::initializer_list<const char*> keys) {
  std::vector<std::string> found;
  for (const char* key : keys) {
    if (const auto place = places.find(key); place != places.end()) found.push_back(place->second);
  }
  return join(found, "; ");
}

/// "24 or 32": the multiples of `step` around a number.
std::string neighbours(int64_t number, int64_t step) {
  const int64_t below = number / step * step;
  return below == 0 ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
}

/// The parts of a global batch that are computed at the same time.
struct Parts {
  int64_t count = 1;
  std::string text = "world_size 1";  // in messages
};

/// "world_size 4", "1 copy of the model (4 processes / pp 2 / tp 2)"
std::string parts_text(const Axes& axes, int64_t world_size) {
  const int64_t parts = axes.data_parts();
  if (parts == world_size) return fmt::format("world_size {}", parts);
  std::string text = axes.dp_shard == 1
                         ? fmt::format("{} {} of the model", parts, parts == 1 ? "copy" : "copies")
                         : counted(parts, "data-parallel group");
  text += fmt::format(" ({} processes", world_size);
  for (const AxisRow& row : axis_rows())
    if (!row.divides_batches && axes.*row.ranks > 1)
      text += fmt::format(" / {} {}", row.name, axes.*row.ranks);
  return text + ")";
}

/// global / (factor * parts), which must be a whole number.
int64_t divide_global(const TrainConfig& train, int64_t factor, const std::string& factor_text,
                      const Parts& parts, const char* quotient_name, const Places& places) {
  const int64_t global = *train.global_batch_size.value;
  const int64_t divisor = factor * parts.count;
  if (global % divisor == 0) return global / divisor;
  const int64_t below = global / divisor;
  const std::string counts = below == 0 ? "1" : fmt::format("{} or {}", below, below + 1);
  throw ConfigError(
      fmt::format("train.global_batch_size {} is not a multiple of {}{}{}", global, factor_text,
                  parts.text, factor_text.empty() ? "" : fmt::format(" = {}", divisor)),
      places_of(places, {"train.global_batch_size", "train.batch_size", "train.grad_accum"}),
      fmt::format("set train.global_batch_size to {} ({} {})", neighbours(global, divisor),
                  quotient_name, counts));
}

/// Where all three are given.
/// @param per_accum, per_batch the global batch for grad_accum 1 and for batch_size 1
std::string fix_of_product(const TrainConfig& train, int64_t per_accum, int64_t per_batch,
                           int64_t product) {
  const int64_t global = *train.global_batch_size.value;
  std::string fix = fmt::format("set train.global_batch_size to {} or auto", product);
  if (global % per_accum == 0)
    fix += fmt::format(", or train.grad_accum to {}", global / per_accum);
  if (global % per_batch == 0)
    fix += fmt::format(", or train.batch_size to {}", global / per_batch);
  return fix;
}

void resolve_given_global(TrainConfig& train, const Parts& parts, int64_t max_micro_batch,
                          const Places& places) {
  const auto batch = train.batch_size.value, accum = train.grad_accum.value;
  if (batch && accum) {
    const int64_t product = *batch * *accum * parts.count;
    if (product == *train.global_batch_size.value) return;
    throw ConfigError(
        fmt::format("train.global_batch_size {} is not train.batch_size {} * train.grad_accum {} * "
                    "{} = {}",
                    *train.global_batch_size.value, *batch, *accum, parts.text, product),
        places_of(places, {"train.global_batch_size", "train.batch_size", "train.grad_accum"}),
        fix_of_product(train, *batch * parts.count, *accum * parts.count, product));
  }
  if (batch) {
    train.grad_accum.value = divide_global(
        train, *batch, fmt::format("train.batch_size {} * ", *batch), parts, "grad_accum", places);
  } else if (accum) {
    train.batch_size.value = divide_global(
        train, *accum, fmt::format("train.grad_accum {} * ", *accum), parts, "batch_size", places);
  } else {
    divide_global(train, 1, "", parts, "per device:", places);
    const BatchShape shape =
        resolve_batch(parts.count, max_micro_batch, *train.global_batch_size.value);
    train.batch_size.value = shape.micro_batch_size;
    train.grad_accum.value = shape.grad_accum_steps;
  }
}

void resolve_batch_sizes(TrainConfig& train, const Parts& parts, int64_t max_micro_batch,
                         const Places& places) {
  if (train.global_batch_size.value) {
    resolve_given_global(train, parts, max_micro_batch, places);
    return;
  }
  if (train.grad_accum.is_auto()) {
    set_target_batch(train, kTargetGlobalBatch, train.batch_size, parts.count, max_micro_batch);
    return;
  }
  if (train.batch_size.is_auto()) {
    const int64_t wanted = kTargetGlobalBatch / parts.count / *train.grad_accum.value;
    train.batch_size.value = std::clamp<int64_t>(wanted, 1, max_micro_batch);
  }
  train.global_batch_size.value = *train.batch_size.value * *train.grad_accum.value * parts.count;
}

void resolve_dtype(RunConfig& config) {
  if (config.model.dtype != DTypeChoice::kAuto) return;
  if (config.train.bf16 == true)
    config.model.dtype = DTypeChoice::kBf16;
  else if (config.train.fp16 == true)
    config.model.dtype = DTypeChoice::kFp16;
  else if (config.train.bf16 == false)
    config.model.dtype = DTypeChoice::kFp32;
}

void resolve_momentum(TrainConfig& train) {
  const OptimizerInfo& optimizer = optimizer_info(train.optimizer);
  if (optimizer.reads("momentum")) train.momentum = train.resolved_momentum();
  if (optimizer.reads("nesterov")) train.nesterov = train.resolved_nesterov();
}

void resolve_schedule(RunConfig& config) {
  TrainConfig& train = config.train;
  if (train.objective_info().reads("train.beta")) train.beta = train.resolved_beta();
  if (!train.learning_rate) {
    train.learning_rate = config.tuning.trains_adapter() ? kLoraLearningRate : kFullLearningRate;
  }
  resolve_momentum(train);
  const bool has_warmup = train.warmup_ratio || train.warmup_steps;
  if (train.warmup_from == WarmupFrom::kAuto)
    train.warmup_from = has_warmup ? WarmupFrom::kZero : WarmupFrom::kFirstStep;
  if (!has_warmup) {
    train.warmup_ratio = train.scheduler == Scheduler::kConstant ? 0 : kWarmupRatio;
  }
}

/// A list, if all parts train as the mode says.
void resolve_parts(TuningConfig& tuning) {
  using enum PartTraining;
  TrainParts& parts = tuning.train_parts;
  const PartTraining usual = tuning.trains_adapter() ? kLora : kFull,
                     other = tuning.trains_adapter() ? kFull : kLora;
  const bool is_mixed = parts.any(other);
  for (const ModelPart part : kModelParts) {
    PartTraining& training = parts.training[part];
    if (training == (is_mixed ? kByMode : usual)) training = is_mixed ? usual : kByMode;
  }
}

/// A head of scores always trains.
void resolve_trainable(RunConfig& config) {
  constexpr const char* kScore = "^score\\.weight$";
  std::vector<std::string>& names = config.tuning.trainable;
  const bool lacks_score = std::find(names.begin(), names.end(), kScore) == names.end();
  if (config.train.objective_info().has_scores() && config.tuning.mode == TuningMode::kPartial &&
      lacks_score)
    names.emplace_back(kScore);
}

void resolve_evaluation(RunConfig& config) {
  TrainConfig& train = config.train;
  const bool has_val = !config.data.val.empty() || config.data.val_split > 0;
  const bool evaluates =
      has_val && (train.eval_strategy != EvalStrategy::kNo || train.eval_on_start);
  if (evaluates && train.eval_batch_size.is_auto() && !train.has_rollouts())
    train.eval_batch_size = train.batch_size;
  if (train.eval_strategy != EvalStrategy::kAuto) return;
  if (has_val && config.data.streaming && !train.eval_steps && train.max_steps) {
    constexpr int64_t kEvaluations = 10;  // there are no epochs
    train.eval_steps = std::max<int64_t>(1, *train.max_steps / kEvaluations);
  }
  train.eval_strategy = !has_val           ? EvalStrategy::kNo
                        : train.eval_steps ? EvalStrategy::kSteps
                                           : EvalStrategy::kEpoch;
}

void resolve_offload(RunConfig& config) {
  Optimizer& optimizer = config.train.optimizer;
  if (config.parallel.offload.optimizer == Offload::kNone) return;
  optimizer = optimizer_info(optimizer).on_host.value_or(optimizer);
}

/// Answers of a step are not packed: a micro-batch has so many of them, one after the other.
void resolve_rollouts(RunConfig& config) {
  if (config.train.writes_answers()) config.data.packing = false;
  if (config.train.has_rollouts())
    config.train.max_completion_length = config.train.rollouts.max_new_tokens;
}

/// The smallest change that makes groups whole. Where batch size and accumulation are given, the global
/// batch follows from them.
std::string fix_of_groups(const TrainConfig& train, const Places& places) {
  const int64_t n = train.rollouts.n, global = *train.global_batch_size.value,
                accum = *train.grad_accum.value, of_one = global / accum;
  if (!places.contains("train.batch_size") || !places.contains("train.grad_accum"))
    return fmt::format("set train.global_batch_size to {}", neighbours(global, n));
  const int64_t whole = std::lcm(of_one, n);
  return fmt::format("set train.grad_accum to {}{}", whole / of_one,
                     places.contains("train.global_batch_size")
                         ? fmt::format(" and train.global_batch_size to {}", whole)
                         : "");
}

/// @throws ConfigError if a step does not have whole groups
void require_whole_groups(const TrainConfig& train, const Places& places) {
  if (!train.has_rollouts()) return;
  const int64_t n = train.rollouts.n, global = *train.global_batch_size.value;
  if (global % n == 0) return;
  throw ConfigError(
      fmt::format("a step has {} answers (train.global_batch_size), which is not a multiple of "
                  "train.rollouts.n {}",
                  global, n),
      places_of(places, {"train.rollouts.n", "train.global_batch_size", "train.batch_size",
                         "train.grad_accum"}),
      fix_of_groups(train, places));
}

/// With the inputs of layers in the host's memory, the micro-batches of a step need little more on
/// the device than one.
void resolve_fetch(RunConfig& config) {
  Fetch& fetch = config.parallel.fetch;
  if (fetch != Fetch::kAuto) return;
  const OffloadConfig& offload = config.parallel.offload;
  const bool streams = (offload.base == Offload::kCpu || offload.params == Offload::kCpu) &&
                       offload.activations == Offload::kCpu &&
                       !config.train.objective_info().is_of_documents();
  fetch = streams ? Fetch::kPerStep : Fetch::kPerMicroBatch;
}

/// Where the optimizer and the division that excludes it are set. Sizes that follow from the strategy
/// have no place.
std::string places_of_refusal(const Places& places, const Divisions& where,
                              ParallelConfig parallel) {
  parallel.strategy = Strategy::kAuto;
  const std::string size = key_of_setting(where.setting(parallel));
  return places_of(places,
                   {"train.optimizer", places.contains(size) ? size.c_str() : "parallel.strategy"});
}

void resolve_strategy(RunConfig& config, int world_size, const Places& places) {
  resolve_axes(config.parallel, world_size, world_size, places);
  require_possible(
      config, config.parallel.axes, KnownBy::kProcesses, {},
      [&](const Divisions& where) { return places_of_refusal(places, where, config.parallel); });
}

void resolve_all(RunConfig& config, const std::filesystem::path& yaml, int world_size,
                 int64_t max_micro_batch, const Places& places) {
  SFTRUN_CHECK(world_size >= 1);
  resolve_dtype(config);
  resolve_parts(config.tuning);
  resolve_trainable(config);
  resolve_rollouts(config);
  resolve_offload(config);
  resolve_fetch(config);
  resolve_strategy(config, world_size, places);
  const Axes& axes = config.parallel.axes;
  const int64_t target = config.train.global_batch_size.value.value_or(kTargetGlobalBatch);
  resolve_batch_sizes(config.train, {axes.data_parts(), parts_text(axes, world_size)},
                      max_auto_micro_batch(axes, max_micro_batch, target), places);
  require_whole_groups(config.train, places);
  resolve_schedule(config);
  resolve_evaluation(config);
  if (config.output.dir.empty())
    config.output.dir = (std::filesystem::path("runs") / yaml.stem()).string();
}

}  // namespace

Strategy resolved_strategy(Strategy wanted, int world_size, const std::string& place) {
  if (wanted == Strategy::kDeviceMap && world_size == 1) return wanted;
  if (world_size == 1) return Strategy::kSingle;
  if (wanted == Strategy::kAuto) return Strategy::kDdp;
  if (wanted != Strategy::kSingle) return wanted;
  throw ConfigError(
      fmt::format("parallel.strategy is single, but the run has {} processes", world_size), place,
      "remove parallel.strategy, or give --nproc-per-node 1");
}

namespace {

/// With copies, a preset that has them by default, if there is one of this level.
Strategy sharding_strategy(const Axes& axes) {
  const StrategyRow* found = nullptr;
  for (const StrategyRow& row : kStrategies) {
    if (row.level != axes.level || row.same) continue;
    const bool fits = row.shards_in_machine == (axes.dp_replicate > 1);
    if (!found || fits) found = &row;
  }
  SFTRUN_CHECK(found != nullptr);
  return found->strategy;
}

}  // namespace

Strategy strategy_of(const Axes& axes) {
  if (axes.stages_in_process) return Strategy::kDeviceMap;
  if (axes.has_shards()) return sharding_strategy(axes);
  for (const StrategyRow& row : kStrategies)
    if (row.axis && axes.*row_of(*row.axis).ranks > 1) return row.strategy;
  return axes.dp_replicate * axes.cp > 1 ? Strategy::kDdp : Strategy::kSingle;
}

std::string near_divisors(int64_t number, int64_t asked) {
  std::vector<std::string> near;
  for (int64_t below = std::min(asked, number); below > 1 && near.empty(); --below)
    if (number % below == 0) near.push_back(std::to_string(below));
  for (int64_t above = asked + 1; above <= number; ++above)
    if (number % above == 0) {
      near.push_back(std::to_string(above));
      break;
    }
  return join(near, " or ");
}

void resolve_axes(ParallelConfig& parallel, int world_size, int local_world_size,
                  const Places& places) {
  const bool is_auto = parallel.strategy == Strategy::kAuto;
  parallel.strategy =
      resolved_strategy(parallel.strategy, world_size, place_of(places, "parallel.strategy"));
  ParallelConfig asked = parallel;
  if (is_auto) asked.strategy = Strategy::kAuto;
  parallel.axes = axes_of(asked, world_size, local_world_size, places);
  if (world_size == 1) return;
  if (is_auto) parallel.strategy = strategy_of(parallel.axes);
  for (const AxisRow& row : axis_rows())
    if (!row.divides_batches && parallel.axes.*row.ranks > 1)
      parallel.*row.asked = parallel.axes.*row.ranks;
  if (parallel.axes.dp_shard > 1 &&
      (parallel.axes.dp_replicate > 1 || strategy_row(parallel.strategy).shards_in_machine))
    parallel.dp_shard = parallel.axes.dp_shard;
}

int64_t max_auto_micro_batch(const Axes& axes, int64_t max, int64_t target) {
  if (!axes.has_stages()) return max;
  const int64_t bins = target / axes.data_parts();
  return std::clamp<int64_t>(bins / (kMinAutoGradAccum * axes.pp), 1, max);
}

std::string_view dtype_name(DTypeChoice dtype) {
  return word_of(dtype);
}

std::string_view strategy_name(Strategy strategy) {
  return word_of(strategy);
}

BatchShape resolve_batch(int64_t world_size, int64_t max_micro_batch, int64_t target) {
  SFTRUN_CHECK(world_size >= 1 && max_micro_batch >= 1 && target >= 1);
  const int64_t bins_per_rank = std::max<int64_t>(1, target / world_size);
  const int64_t accum = bins_per_rank < kMinAutoGradAccum ? 1 : kMinAutoGradAccum;
  const int64_t largest = std::min(max_micro_batch, bins_per_rank / accum);
  for (int64_t micro = largest; micro > 1; --micro) {
    if (bins_per_rank % micro == 0) return {micro, bins_per_rank / micro};
  }
  return {1, bins_per_rank};
}

void set_target_batch(TrainConfig& train, int64_t target, AutoInt batch_size, int64_t world_size,
                      int64_t max_micro_batch, bool eval_follows) {
  if (train.has_rollouts()) {  // whole groups, on the same number of answers for each device
    const int64_t step = std::lcm(train.rollouts.n, world_size * batch_size.value.value_or(1));
    target = (target + step - 1) / step * step;
  }
  BatchShape shape = resolve_batch(world_size, max_micro_batch, target);
  if (batch_size.value) {
    shape.micro_batch_size = *batch_size.value;
    shape.grad_accum_steps = std::max<int64_t>(1, target / world_size / *batch_size.value);
  }
  train.batch_size.value = shape.micro_batch_size;
  if (eval_follows && train.eval_batch_size.value) train.eval_batch_size = train.batch_size;
  train.grad_accum.value = shape.grad_accum_steps;
  train.global_batch_size.value = shape.micro_batch_size * shape.grad_accum_steps * world_size;
}

void resolve(RunConfig& config, const std::filesystem::path& yaml, int world_size,
             int64_t max_micro_batch) {
  resolve_all(config, yaml, world_size, max_micro_batch, {});
}

void resolve(LoadedConfig& loaded, const std::filesystem::path& yaml, int world_size,
             int64_t max_micro_batch) {
  resolve_all(loaded.config, yaml, world_size, max_micro_batch, loaded.places);
}

}  // namespace sftrun::config
