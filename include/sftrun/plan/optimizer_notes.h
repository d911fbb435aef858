#pragma once

#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// Names the keys of `train` that are set and have no effect with an optimizer for matrices, because
/// tuning.trainable selects only matrices, or none; empty: none. For other modes than partial the
/// configuration alone decides (config/idle_settings.h).
/// @throws ConfigError as spec::TrainableNames
std::string idle_optimizer_keys(const config::RunConfig& config, const spec::ArchSpec& arch);

}  // namespace sftrun::plan
