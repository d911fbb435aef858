#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/config/base_record.h"
#include "sftrun/config/run_config.h"
#include "sftrun/observe/model_card.h"

namespace sftrun::observe {

/// What a run knows of its result beside its configuration.
struct ResultFacts {
  std::string base_model;                           ///< as the result names it
  const config::BaseRecord* base_record = nullptr;  ///< of an adapter; null: a full model
  bool reads_images = false;                        ///< see ModelCard
  bool leaves_template_unused = false;              ///< see ModelCard
  std::string quantize_command, quantised_base;     ///< see ModelCard
  int64_t trained_steps = 0;
  int64_t total_steps = 0;       ///< more than `trained_steps` after early stopping
  std::optional<double> epochs;  ///< of `trained_steps`; null: unknown, the data were streamed
  std::string dtype;             ///< compute dtype: "fp32"
  int world_size = 1;
  std::string version;  ///< of sftrun
};

/// The model card of a run's result, with the settings that somebody needs to repeat the run.
/// @param config resolved
ModelCard card_of_run(const config::RunConfig& config, const ResultFacts& facts,
                      const RunSummary& summary);

}  // namespace sftrun::observe
