#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "run_check.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"

/// Steps, tokens and duration of a run, estimated before the first step.
namespace sftrun::app {

/// Resolves `auto` in model.dtype, model.attention and tuning.quant. tuning.quant stays `auto` if
/// the model's files are not known.   @throws ConfigError for fp16 on a CPU
void resolve_auto(config::RunConfig& config, const ModelHeaders& headers, bool on_gpu);

/// The settings of batch sizes, which are resolved when the data are known.
struct BatchRequest {
  config::AutoInt batch_size;   ///< as configured
  bool steps_are_auto = false;  ///< neither global_batch_size nor grad_accum was given
  int64_t max_micro_batch = 1;
  int dp_size = 1;            ///< Axes::data_parts, when they are resolved
  bool eval_follows = false;  ///< eval_batch_size: auto
};
BatchRequest batch_request(const config::TrainConfig& asked);

/// The batch plan of a run, of the examples that were read.
data::BatchPlan trial_plan(const config::RunConfig& config,
                           const std::vector<data::DatasetTrial>& train, int64_t bin_tokens,
                           int64_t global_batch_size);

/// Whether the number of tokens in the data decides batch sizes, or the tokens of a packed sequence
/// (data/small_data.h).
bool sizes_follow_data(const config::RunConfig& config, const BatchRequest& batches);
/// Whether an epoch of about this many tokens and examples (or pairs) is small enough for it.
bool may_decide_sizes(const config::RunConfig& config, double tokens, double examples);

struct Forecast {
  int64_t steps = 0, steps_per_epoch = 0, tokens_per_epoch = 0;
  int64_t bins_in_epoch = 0;  ///< a step has no more; 0: not known (streaming)
  int64_t evaluations = 0;    ///< config::num_evaluations; 0: not known without all records
  config::TrainConfig sizes;  ///< batch sizes, resolved by the data
  int64_t bin_tokens = 0;     ///< 0: without packing
  bool is_exact = false;      ///< all records were read; else estimated from the first ones
  double tokens_of_bin = 0;   ///< plan::RunDevices::tokens_of_bin; 0: not all records were read
  bool knows_sizes = true;    ///< whether `sizes` are those of the run, and not estimates
  config::AutoInt asked_batch_size;  ///< as configured
  bool eval_follows = false;         ///< eval_batch_size: auto
};
/// @param config resolved   @param train the trials of config.data.train, in their order
/// @param tries_longest whether the longest micro-batch comes first (train.longest_batch_first)
Forecast forecast(const config::RunConfig& config, const std::vector<data::DatasetTrial>& train,
                  const BatchRequest& batches, bool tries_longest = false);

/// Writes the resolved batch sizes into `config`, if they are known exactly; makes sizes `auto` that
/// the run will find by counting its data.
void apply_sizes(const Forecast& forecast, config::RunConfig& config);

/// One line each for steps, tokens and duration. The duration is known only if output.dir holds an
/// earlier run; its tokens per second are used, and nothing is measured.
std::vector<std::string> lines_of(const Forecast& forecast, const config::RunConfig& config);

}  // namespace sftrun::app
