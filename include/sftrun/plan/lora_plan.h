#pragma once

#include "sftrun/config/run_config.h"
#include "sftrun/spec/trained_names.h"

/// Converts a run's `tuning.lora` to module targets and adapter sizes.
namespace sftrun::plan {

spec::LoraTargets lora_targets(const config::LoraConfig& lora);
spec::LoraSizes lora_sizes(const config::LoraConfig& lora);

}  // namespace sftrun::plan
