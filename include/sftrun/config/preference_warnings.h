#pragma once

#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::config {

/// What a run of preference training was not given, or cannot do well.
/// @param asked the configuration before it was resolved
std::vector<std::string> preference_warnings(const RunConfig& asked);

}  // namespace sftrun::config
