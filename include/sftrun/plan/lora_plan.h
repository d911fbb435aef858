#pragma once

#include "sftrun/config/run_config.h"
#include "sftrun/spec/lora_spec.h"

namespace sftrun::plan {

/// The run's `tuning.lora`, for everything that follows the configuration.
spec::LoraSpec lora_spec(const config::LoraConfig& lora);

}  // namespace sftrun::plan
