#pragma once

#include <cstdint>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"

/// Defaults that learn from small data sets: a few long bins, all of them in one step, would leave
/// a run with hardly a step.
namespace sftrun::data {

/// Optimizer steps that an epoch is to have, where the data allow it.
inline constexpr int64_t kStepsInEpoch = 50;
/// Fewer tokens a bin are not chosen: gradients of so few are mostly noise.
inline constexpr int64_t kFewestBinTokens = 256;

/// What an epoch of a data set comes to.
struct EpochSize {
  int64_t bins = 0;    ///< of model.max_seq_len tokens when packing, else examples
  int64_t tokens = 0;  ///< of all examples, as often as an epoch has them
};
EpochSize epoch_size(const config::RunConfig& config, const Dataset& dataset);

/// Bins a step is to have, at most config::kTargetGlobalBatch: so many that an epoch has
/// kStepsInEpoch steps, down to one.
int64_t target_batch(const EpochSize& epoch);

/// Tokens of a bin when a step has `global_batch_size` of them: model.max_seq_len, and less where
/// an epoch would have fewer than kStepsInEpoch steps.
int64_t bin_tokens(const EpochSize& epoch, int64_t global_batch_size, int64_t max_seq_len);

}  // namespace sftrun::data
