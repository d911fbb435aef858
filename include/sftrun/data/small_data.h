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
/// Lower limit for bin_tokens: gradients of fewer tokens are mostly noise.
inline constexpr int64_t kFewestBinTokens = 256;

/// Size of an epoch.
struct EpochSize {
  int64_t bins = 0;    ///< packed sequences of model.max_seq_len tokens; without packing examples
  int64_t tokens = 0;  ///< of all examples, with repetitions
};
EpochSize epoch_size(const config::RunConfig& config, const Dataset& dataset);

/// Bins per step, from 1 to config::kTargetGlobalBatch, such that an epoch has kStepsInEpoch steps
/// if possible.
int64_t target_batch(const EpochSize& epoch);

/// Capacity of a bin in tokens for `global_batch_size` bins per step: model.max_seq_len, or less if
/// an epoch would have fewer than kStepsInEpoch steps.
int64_t bin_tokens(const EpochSize& epoch, int64_t global_batch_size, int64_t max_seq_len);

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
