#pragma once

#include <string>

#include "sftrun/config/run_config.h"

namespace sftrun::plan {

/// Names the keys of `tuning` that are set and say nothing about this run's base, and why; empty:
/// there are none.   @param keeps_stored whether the base stays as its files have it
std::string idle_quant_keys(const config::TuningConfig& tuning, bool keeps_stored);

}  // namespace sftrun::plan
