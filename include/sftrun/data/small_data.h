#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"

/// Defaults for small data sets. With a few long bins, all of them in one step, a run would have
/// hardly any steps.
namespace sftrun::data {

/// Desired optimizer steps per epoch, if the data set is large enough.
inline constexpr int64_t kStepsInEpoch = 50;
/// Examples in a step of an objective that compares the texts of a batch with each other: more make
/// the task harder, so that fewer steps are made where the data are few.
inline constexpr int64_t kMinContrasted = 64, kMaxContrasted = 128;
/// Fewest steps of an epoch that they leave.
inline constexpr int64_t kFewestContrastSteps = 8;
/// Lower limit for bin_tokens: gradients of fewer tokens are mostly noise.
inline constexpr int64_t kFewestBinTokens = 256;

/// Size of an epoch.
struct EpochSize {
  int64_t bins = 0;    ///< packed sequences of model.max_seq_len tokens; without packing examples
  int64_t tokens = 0;  ///< of all examples, with repetitions
  int64_t examples =
      0;  ///< the same without packing; pairs and queries with their texts are one each
};
EpochSize epoch_size(const config::RunConfig& config, const Dataset& dataset);

/// Bins per step, from 1 to config::kTargetGlobalBatch, such that an epoch has kStepsInEpoch steps
/// if possible. Where the texts of a batch are compared with each other: bins with kMinContrasted to
/// kMaxContrasted examples, or fewer if an epoch would have fewer than kFewestContrastSteps steps.
/// @param is_counted the number of steps is given: the data do not make batches smaller
int64_t target_batch(const EpochSize& epoch, const config::ObjectiveInfo& objective,
                     bool is_counted = false);

/// The largest that `target_batch` gives.
int64_t max_target_batch(const config::ObjectiveInfo& objective);

/// Capacity of a bin in tokens for `global_batch_size` bins per step: model.max_seq_len, or less if
/// the bins of a step would have more tokens than what `target_batch` is for.
int64_t bin_tokens(const EpochSize& epoch, const config::ObjectiveInfo& objective,
                   int64_t global_batch_size, int64_t max_seq_len);

/// For a batch that is larger than an epoch: a step has at most the packed sequences, or examples, of
/// an epoch. nullopt: they are enough, or it is not known.
/// @param sizes with all batch sizes   @param bins_in_epoch 0: not known
/// @param is_exact else bins_in_epoch is an estimate
std::optional<std::string> large_batch_warning(const config::RunConfig& config,
                                               const config::TrainConfig& sizes,
                                               int64_t bins_in_epoch, bool is_exact);

/// For a run that will train little or nothing.
/// @param config with global_batch_size and, with packing, bin_tokens
/// @param learns_nothing every learning rate is 0
std::optional<std::string> few_steps_warning(const config::RunConfig& config, int64_t total_steps,
                                             bool learns_nothing);

}  // namespace sftrun::data
