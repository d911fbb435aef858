#include "run_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "sftrun/config/answers_line.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/small_data.h"
#include "sftrun/observe/run_summary.h"
#include "sftrun/plan/auto_values.h"

namespace sftrun::app {
namespace {

struct Epoch {
  double tokens = 0, examples = 0, records = 0;
  bool is_exact = true;
};

/// Whether each record of the data was read, and is known to be held out or not.
bool are_counted(const config::RunConfig& config, const std::vector<data::DatasetTrial>& train) {
  const auto is_counted = [&](const data::DatasetTrial& trial) {
    return trial.is_whole &&
           (config.data.val_split == 0 || trial.records.size() == trial.lengths.size());
  };
  return !config.data.streaming && std::all_of(train.begin(), train.end(), is_counted);
}

/// The trials without the examples that data.val_split holds out.   @pre are_counted
std::vector<data::DatasetTrial> without_held_out(const config::RunConfig& config,
                                                 std::vector<data::DatasetTrial> train) {
  if (config.data.val_split == 0) return train;
  std::vector<int64_t> records;
  for (const data::DatasetTrial& trial : train) {
    const int64_t first = records.empty() ? 0 : records.back() + 1;
    for (const int64_t record : trial.records) records.push_back(first + record);
  }
  const std::vector<bool> is_held_out =
      data::held_out(records, config.data.val_split, static_cast<uint64_t>(config.data.seed));
  size_t example = 0;
  for (data::DatasetTrial& trial : train) {
    std::vector<int64_t> kept;
    for (const int64_t length : trial.lengths)
      if (!is_held_out[example++]) kept.push_back(length);
    trial.lengths = std::move(kept);
  }
  return train;
}

/// @pre are_counted
Epoch counted_epoch(const config::RunConfig& config, const std::vector<data::DatasetTrial>& kept) {
  Epoch epoch;
  for (size_t i = 0; i < kept.size(); ++i) {
    const double weight = config.data.train[i].weight;
    for (const int64_t length : kept[i].lengths)
      epoch.tokens += weight * static_cast<double>(length);
    epoch.examples += weight * static_cast<double>(kept[i].lengths.size());
  }
  epoch.examples *= static_cast<double>(config.train.examples_of_record()) /
                    static_cast<double>(data::documents_together(config));
  return epoch;
}

Epoch epoch_of(const config::RunConfig& config, const std::vector<data::DatasetTrial>& train) {
  Epoch epoch{.is_exact = false};
  for (size_t i = 0; i < train.size(); ++i) {
    const data::DatasetTrial& trial = train[i];
    const double all = static_cast<double>(trial.num_records_estimated),
                 read = static_cast<double>(std::max<int64_t>(1, trial.stats.num_records)),
                 times = config.data.train[i].weight * (trial.is_whole ? 1 : all / read);
    epoch.tokens += times * static_cast<double>(trial.stats.num_tokens);
    epoch.examples += times * static_cast<double>(trial.stats.num_examples) /
                      static_cast<double>(data::documents_together(config));
    epoch.records += all;
  }
  const double held_out = config.data.val_split < 1
                              ? config.data.val_split
                              : config.data.val_split / std::max(1.0, epoch.records);
  const double kept = std::max(0.0, 1 - held_out);
  epoch.tokens *= kept;
  epoch.examples *= kept * static_cast<double>(config.train.examples_of_record());
  return epoch;
}

}  // namespace

data::BatchPlan trial_plan(const config::RunConfig& config,
                           const std::vector<data::DatasetTrial>& train, int64_t bin_tokens,
                           int64_t global_batch_size) {
  data::BatchPlanOptions options{.max_seq_len = config.model.max_seq_len,
                                 .bin_tokens = bin_tokens,
                                 .global_batch_size = std::max<int64_t>(
                                     1, global_batch_size / config.train.examples_of_record()),
                                 .packing = config.data.packing,
                                 .shuffle = config.data.shuffle,
                                 .group_by_length = config.data.group_by_length,
                                 .documents_together = data::documents_together(config),
                                 .seed = static_cast<uint64_t>(config.data.seed)};
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < train.size(); ++i) {
    const int64_t begin = std::ssize(lengths);
    lengths.insert(lengths.end(), train[i].lengths.begin(), train[i].lengths.end());
    options.groups.push_back({begin, std::ssize(lengths), config.data.train[i].weight});
  }
  std::vector<int64_t> label_tokens(lengths.size(), 1);  // not used here
  return {std::move(lengths), std::move(label_tokens), options};
}

namespace {

/// Number of bins of the examples that were read, divided by the number that their tokens would
/// fill: at least 1, because bins are not full.
double bins_over_full_ones(const config::RunConfig& config,
                           const std::vector<data::DatasetTrial>& train, int64_t bin_tokens) {
  double tokens = 0;
  for (size_t i = 0; i < train.size(); ++i) {
    for (const int64_t length : train[i].lengths)
      tokens += config.data.train[i].weight * static_cast<double>(length);
  }
  if (tokens == 0) return 1;
  const data::BatchPlan one_bin_a_step = trial_plan(config, train, bin_tokens, 1);
  const auto bins = static_cast<double>(one_bin_a_step.steps_per_epoch(0));
  return std::max(1.0, bins * static_cast<double>(bin_tokens) / tokens);
}

int64_t steps_in(double epochs, const std::function<int64_t(int64_t)>& steps_of_epoch) {
  int64_t steps = 0;
  for (int64_t epoch = 0; static_cast<double>(epoch) < epochs; ++epoch) {
    const double part = std::min(1.0, epochs - static_cast<double>(epoch));
    const double in_epoch = static_cast<double>(steps_of_epoch(epoch));
    steps += std::max<int64_t>(1, static_cast<int64_t>(std::ceil(part * in_epoch)));
  }
  return steps;
}

std::string duration_line(const Forecast& forecast, const config::RunConfig& config) {
  const observe::RunSummary earlier =
      observe::read_run_summary(std::filesystem::path(config.output.dir) / "metrics.jsonl");
  if (earlier.tokens <= 0 || earlier.seconds <= 0)
    return "duration: unknown until the first steps have run; then the progress line estimates it";
  const double rate = static_cast<double>(earlier.tokens) / earlier.seconds;
  const double tokens = static_cast<double>(forecast.tokens_per_epoch) *
                        static_cast<double>(forecast.steps) /
                        static_cast<double>(std::max<int64_t>(1, forecast.steps_per_epoch));
  return fmt::format(
      "duration: about {} without evaluation, at the {:.0f} tokens/s of the earlier run in {}",
      format_duration(tokens / rate), rate, config.output.dir);
}

}  // namespace

void resolve_auto(config::RunConfig& config, const ModelHeaders& headers, bool on_gpu) {
  config.model.dtype = plan::resolved_dtype(
      config.model.dtype, on_gpu, config.train.fp16 == true ? "train.fp16" : "model.dtype");
  if (headers.knows_form || !config.tuning.trains_adapter())
    config.tuning.quant = plan::resolved_quant(config.tuning, headers.block_kinds);
}

BatchRequest batch_request(const config::TrainConfig& asked) {
  return {.batch_size = asked.batch_size,
          .steps_are_auto = asked.global_batch_size.is_auto() && asked.grad_accum.is_auto(),
          .max_micro_batch = config::kMaxAutoMicroBatch,
          .eval_follows = asked.eval_batch_size.is_auto()};
}

bool sizes_follow_data(const config::RunConfig& config, const BatchRequest& batches) {
  const bool finds_bins = config.data.packing && config.data.bin_tokens.is_auto();
  return !config.data.streaming && !config.train.max_steps &&
         (batches.steps_are_auto || finds_bins);
}

bool may_decide_sizes(const config::RunConfig& config, double tokens, double examples) {
  constexpr double kNear = 1.25;  // what an estimate may be off
  const double bins =
      config.data.packing ? tokens / static_cast<double>(config.model.max_seq_len) : examples;
  const int64_t per_step = std::max(data::max_target_batch(config.train.objective_info()),
                                    config.train.global_batch_size.value.value_or(1));
  return bins < kNear * static_cast<double>(data::kStepsInEpoch * per_step);
}

Forecast forecast(const config::RunConfig& config, const std::vector<data::DatasetTrial>& all,
                  const BatchRequest& batches, bool tries_longest) {
  const bool is_exact = are_counted(config, all);
  const std::vector<data::DatasetTrial> train = is_exact ? without_held_out(config, all) : all;
  const Epoch known = is_exact ? counted_epoch(config, train) : epoch_of(config, train);
  const double bins = config.data.packing
                          ? known.tokens / static_cast<double>(config.model.max_seq_len)
                          : known.examples;
  const data::EpochSize epoch{.bins = static_cast<int64_t>(std::ceil(bins)),
                              .tokens = static_cast<int64_t>(known.tokens),
                              .examples = static_cast<int64_t>(std::ceil(known.examples))};
  const config::ObjectiveInfo& objective = config.train.objective_info();
  const bool is_counted = config.train.max_steps.has_value();
  config::TrainConfig sizes = config.train;
  if (batches.steps_are_auto && !config.data.streaming) {
    const int64_t target = data::target_batch(epoch, objective, is_counted);
    set_target_batch(
        sizes, target, batches.batch_size, batches.dp_size,
        config::max_auto_micro_batch(config.parallel.axes, batches.max_micro_batch, target),
        batches.eval_follows);
  }
  const int64_t global_batch_size = *sizes.global_batch_size.value;
  Forecast result{.tokens_per_epoch = epoch.tokens,
                  .sizes = sizes,
                  .is_exact = known.is_exact,
                  .knows_sizes = is_exact || !batches.steps_are_auto || is_counted ||
                                 config.data.streaming ||
                                 !may_decide_sizes(config, known.tokens, known.examples),
                  .asked_batch_size = batches.batch_size,
                  .eval_follows = batches.eval_follows};
  if (config.data.packing) {
    const int64_t longest = config.model.max_seq_len;
    result.bin_tokens = config.data.bin_tokens.value.value_or(
        is_counted || config.data.streaming
            ? longest
            : data::bin_tokens(epoch, objective, global_batch_size, longest));
  }
  const auto per_step = static_cast<double>(global_batch_size);
  const double in_bins = config.data.packing
                             ? known.tokens / static_cast<double>(result.bin_tokens) *
                                   bins_over_full_ones(config, train, result.bin_tokens)
                             : known.examples;
  const auto estimated = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(in_bins / per_step)));
  std::optional<data::BatchPlan> plan;
  if (known.is_exact) plan.emplace(trial_plan(config, train, result.bin_tokens, global_batch_size));
  const auto steps_of_epoch = [&](int64_t number) {
    return (plan ? plan->steps_per_epoch(number) : estimated) * config.train.steps_of_batch();
  };
  result.steps_per_epoch = steps_of_epoch(0);
  if (!config.data.streaming)
    result.bins_in_epoch = plan ? plan->bins_in_epoch(0) * config.train.examples_of_record()
                                : std::max<int64_t>(1, static_cast<int64_t>(std::ceil(in_bins)));
  result.steps =
      is_counted ? *config.train.max_steps : steps_in(config.train.epochs, steps_of_epoch);
  const bool counts_epochs = config.train.eval_strategy == config::EvalStrategy::kEpoch;
  if (is_exact || is_counted != counts_epochs) {
    const double epochs =
        is_counted ? static_cast<double>(result.steps) / static_cast<double>(result.steps_per_epoch)
                   : config.train.epochs;
    result.evaluations =
        config::num_evaluations(config.train, result.steps, config.data.streaming ? 0 : epochs);
  }
  if (plan) {
    const int64_t bins_together = *sizes.batch_size.value;
    const int64_t tokens = tries_longest ? plan->longest_tokens(bins_together)
                                         : plan->max_tokens(bins_together, result.steps);
    result.tokens_of_bin = static_cast<double>(tokens) / static_cast<double>(bins_together);
    if (config.train.has_rollouts())  // the longest answers may come at any step
      result.tokens_of_bin =
          static_cast<double>(plan->longest_tokens(1) + config.train.rollouts.max_new_tokens);
    // What of an example is its prompt is not known here.
    if (config.train.has_own_answers())
      result.tokens_of_bin = static_cast<double>(
          std::min(plan->longest_tokens(1) + config.train.rollouts.max_new_tokens,
                   config.model.max_seq_len));
  }
  return result;
}

void apply_sizes(const Forecast& forecast, config::RunConfig& config) {
  if (!forecast.knows_sizes) {
    config.train.batch_size = forecast.asked_batch_size;
    config.train.grad_accum = config.train.global_batch_size = {};
    if (forecast.eval_follows) config.train.eval_batch_size = forecast.asked_batch_size;
  }
  if (!forecast.is_exact) return;
  config.train.batch_size = forecast.sizes.batch_size;
  config.train.eval_batch_size = forecast.sizes.eval_batch_size;
  config.train.grad_accum = forecast.sizes.grad_accum;
  config.train.global_batch_size = forecast.sizes.global_batch_size;
  if (forecast.bin_tokens > 0) config.data.bin_tokens.value = forecast.bin_tokens;
}

std::vector<std::string> lines_of(const Forecast& forecast, const config::RunConfig& config) {
  const char* about = forecast.is_exact ? "" : "about ";
  const bool is_counted = config.train.max_steps.has_value();
  const int64_t asked = *forecast.sizes.global_batch_size.value, epoch = forecast.bins_in_epoch;
  const bool is_cut = epoch > 0 && epoch < asked;
  const int64_t per_step = is_cut ? epoch : asked;
  const std::string unit = forecast.bin_tokens > 0
                               ? fmt::format("{} of {}", counted(per_step, "packed sequence"),
                                             counted(forecast.bin_tokens, "token"))
                               : counted(per_step, config.train.objective_info().example_word());
  std::vector<std::string> lines = {
      fmt::format("steps: {}{}, {}{} per epoch; {}{} per step", is_counted ? "" : about,
                  counted(forecast.steps, "optimizer step"), about, forecast.steps_per_epoch,
                  is_cut ? about : "", unit),
      fmt::format("tokens: {}{} per epoch", about,
                  format_count(static_cast<uint64_t>(forecast.tokens_per_epoch))),
      duration_line(forecast, config)};
  if (std::string answers = config::answers_line(config.train); !answers.empty())
    lines.push_back(std::move(answers));
  return lines;
}

}  // namespace sftrun::app
