#pragma once

#include <cstdint>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/core/model_part.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"

/// The parts of a model with images or projectors in a run: how many parameters each has, and what of it trains.
namespace sftrun::plan {

/// The parameters of each part that a run loads.
ByPart<int64_t> part_parameters(const spec::ArchSpec& arch, const TowerUse& use);
/// The values that a run trains in each part: of adapters, or of the part's own weights.
/// @throws ConfigError for names in `tuning` that match nothing
ByPart<int64_t> part_trained(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                             const TowerUse& use);

/// "parts: language 7.62B, 20.2M trained (lora); projector 44.6M, frozen; vision 632M, frozen"; empty for a model of text alone.
std::string describe_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                           const TowerUse& use, const ByPart<int64_t>& trained);

}  // namespace sftrun::plan
