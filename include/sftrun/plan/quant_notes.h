#pragma once

#include <set>
#include <string>

#include "sftrun/config/run_config.h"

namespace sftrun::plan {

/// Names the keys of `tuning` that are set but have no effect on this run's base, with the reason;
/// empty: none.   @param keeps_stored whether the base keeps its files' format
std::string idle_quant_keys(const config::TuningConfig& tuning, bool keeps_stored);

/// @param kinds of blocks in the model's files: "gguf", "mxfp4"
/// @throws ConfigError where blocks are to stay that it does not have.   @pre kGguf or kMxfp4
void require_blocks(config::Quant quant, const std::set<std::string>& kinds);

}  // namespace sftrun::plan
