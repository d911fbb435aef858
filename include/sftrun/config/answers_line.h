#pragma once

#include <string>

#include "sftrun/config/run_config.h"

namespace sftrun::config {

/// Which answers a run writes between its steps: "answers: the model writes 8 to each prompt itself, …"; empty: none.
std::string answers_line(const TrainConfig& train);

}  // namespace sftrun::config
