#pragma once

#include "sftrun/config/objectives.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {

/// What data with such a record are made for, by its columns: answers that are compared, have a reward,
/// are judged or have a class; else supervised fine-tuning.
config::Objective likely_objective(const Json& record);

}  // namespace sftrun::data
