#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "run_check.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"

/// What a run will be, as far as it can be known before a step has run.
namespace sftrun::app {

/// Writes what `auto` becomes into model.dtype, model.attention and tuning.quant; tuning.quant
/// stays where the model's files are not known.   @throws ConfigError for fp16 on a CPU
void resolve_auto(config::RunConfig& config, const ModelHeaders& headers, bool on_gpu);

/// How batch sizes are found when the data are known.
struct BatchRequest {
  config::AutoInt batch_size;   ///< as it was asked for
  bool steps_are_auto = false;  ///< neither global_batch_size nor grad_accum was given
  int64_t max_micro_batch = 1;
  int world_size = 1;
};
BatchRequest batch_request(const config::TrainConfig& asked, int world_size);

struct Forecast {
  int64_t steps = 0, steps_per_epoch = 0, tokens_per_epoch = 0;
  config::TrainConfig sizes;  ///< of batches, as the data decide
  int64_t bin_tokens = 0;     ///< 0: without packing
  bool is_exact = false;      ///< all records were read; else from the first of them
};
/// @param config resolved   @param train the trials of config.data.train, in their order
Forecast forecast(const config::RunConfig& config, const std::vector<data::DatasetTrial>& train,
                  const BatchRequest& batches);

/// Writes the sizes that the data decide into `config`, where they are known exactly.
void apply_sizes(const Forecast& forecast, config::RunConfig& config);

/// Steps, tokens and duration, a line each. There is a duration only where output.dir holds an
/// earlier run, whose rate is taken: nothing is measured for it.
std::vector<std::string> lines_of(const Forecast& forecast, const config::RunConfig& config);

}  // namespace sftrun::app
