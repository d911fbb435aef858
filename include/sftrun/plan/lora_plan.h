#pragma once

#include <optional>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/feature_projector.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/lora_spec.h"

namespace sftrun::plan {

/// Adds those of the adapter that the run starts from, and `model.projectors`.   @param of_start weights::read_projectors
/// @throws ConfigError as spec::add_projectors_of_run, and for a new one in a part that does not train
void add_projectors(spec::ArchSpec& arch, const config::RunConfig& config,
                    const std::vector<FeatureProjector>& of_start);

/// The head of scores of a run whose objective has one; nullopt: it trains the language-model head.
/// @throws ConfigError for models that cannot have the one or the other
std::optional<spec::ScoreSpec> score_of_run(const spec::ArchSpec& arch,
                                            const config::RunConfig& config);
/// Whether the run is of a model without a head (weights::without_head).
bool has_no_head(const config::RunConfig& config);
/// Sets the head of scores, or that there is none.   @throws ConfigError alike
void add_score(spec::ArchSpec& arch, const config::RunConfig& config);

/// The run's `tuning.lora`, for everything that follows the configuration. Parts of a model with images that train in full beside LoRA
/// are in its `modules_to_save`.   @pre require_parts_exist(tuning, arch)
spec::LoraSpec lora_spec(const config::TuningConfig& tuning, const spec::ArchSpec& arch);
/// @throws ConfigError if `tuning.train_parts` names a part that the model does not have
void require_parts_exist(const config::TuningConfig& tuning, const spec::ArchSpec& arch);

}  // namespace sftrun::plan
