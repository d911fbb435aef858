#include "sftrun/data/small_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {

EpochSize epoch_size(const config::RunConfig& config, const Dataset& dataset) {
  EpochSize epoch;
  double tokens = 0, examples = 0;
  for (const DatasetPart& part : dataset.parts()) {
    for (int64_t i = part.begin; i < part.end; ++i) {
      const int64_t length = dataset.examples().stored(i).length;
      tokens += part.weight * static_cast<double>(length);
      examples += part.weight;
    }
  }
  const auto times = static_cast<double>(config.train.examples_of_record());
  epoch.tokens = static_cast<int64_t>(times * tokens);
  examples *= times / static_cast<double>(documents_together(config));
  const double bins =
      config.data.packing ? tokens / static_cast<double>(config.model.max_seq_len) : examples;
  epoch.bins = static_cast<int64_t>(std::ceil(bins));
  epoch.examples = static_cast<int64_t>(std::ceil(examples));
  return epoch;
}

namespace {

/// The share of an epoch that is to be in a step of an objective that compares the texts of a batch.
double contrasted_share(const EpochSize& epoch, bool is_counted) {
  if (epoch.examples == 0) return 1;
  const int64_t wanted =
      is_counted
          ? kMaxContrasted
          : std::min(std::clamp(epoch.examples / kStepsInEpoch, kMinContrasted, kMaxContrasted),
                     std::max<int64_t>(2, epoch.examples / kFewestContrastSteps));
  return std::min(1.0, static_cast<double>(wanted) / static_cast<double>(epoch.examples));
}

int64_t scaled(int64_t number, double share) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(number) * share));
}

}  // namespace

int64_t target_batch(const EpochSize& epoch, const config::ObjectiveInfo& objective,
                     bool is_counted) {
  if (objective.embeds())
    return std::clamp<int64_t>(scaled(epoch.bins, contrasted_share(epoch, is_counted)), 1,
                               kMaxContrasted);
  if (is_counted) return config::kTargetGlobalBatch;
  return std::clamp<int64_t>(epoch.bins / kStepsInEpoch, 1, config::kTargetGlobalBatch);
}

int64_t max_target_batch(const config::ObjectiveInfo& objective) {
  return objective.embeds() ? kMaxContrasted : config::kTargetGlobalBatch;
}

int64_t bin_tokens(const EpochSize& epoch, const config::ObjectiveInfo& objective,
                   int64_t global_batch_size, int64_t max_seq_len) {
  SFTRUN_CHECK(global_batch_size > 0);
  const int64_t of_step = objective.embeds()
                              ? scaled(epoch.tokens, contrasted_share(epoch, /*is_counted=*/false))
                              : epoch.tokens / kStepsInEpoch;
  return std::clamp(of_step / global_batch_size, std::min(kFewestBinTokens, max_seq_len),
                    max_seq_len);
}

std::optional<std::string> large_batch_warning(const config::RunConfig& config,
                                               const config::TrainConfig& sizes,
                                               int64_t bins_in_epoch, bool is_exact) {
  const int64_t asked = *sizes.global_batch_size.value;
  if (bins_in_epoch == 0 || asked <= bins_in_epoch) return std::nullopt;
  const char* fix =
      *sizes.grad_accum.value > 1   ? "lower train.grad_accum or train.global_batch_size"
      : *sizes.batch_size.value > 1 ? "lower train.batch_size or train.global_batch_size"
                                    : "start fewer processes";
  return fmt::format(
      "the batch is larger than an epoch: train.global_batch_size is {}, and an epoch has {}{}, "
      "all of them in one step; {}",
      asked, is_exact ? "" : "about ",
      counted(bins_in_epoch, config.data.packing ? "packed sequence"
                                                 : config.train.objective_info().example_word()),
      fix);
}

std::optional<std::string> few_steps_warning(const config::RunConfig& config, int64_t total_steps,
                                             bool learns_nothing) {
  constexpr int64_t kFewSteps = 10;
  if (learns_nothing) {
    constexpr const char* kNothing =
        "nothing will be trained: the learning rate of every step is 0; ";
    if (config.train.learning_rate == 0.0)
      return kNothing + std::string("raise train.learning_rate");
    return fmt::format("{}raise train.{}, or set train.warmup_from: first_step", kNothing,
                       config.train.max_steps ? "max_steps" : "epochs");
  }
  if (total_steps >= kFewSteps || config.train.max_steps) return std::nullopt;
  std::vector<std::string> lowered;
  const int64_t batch = config.train.global_batch_size.value.value();
  if (batch > 1) lowered.push_back(fmt::format("train.global_batch_size ({})", batch));
  if (config.data.packing)
    lowered.push_back(fmt::format("data.bin_tokens ({})", config.data.bin_tokens.value.value()));
  return fmt::format(
      "the run has only {}: the model will learn little; {}raise train.epochs ({:g})",
      counted(total_steps, "optimizer step"),
      lowered.empty() ? "" : fmt::format("lower {} or ", join(lowered, " or ")),
      config.train.epochs);
}

}  // namespace sftrun::data
