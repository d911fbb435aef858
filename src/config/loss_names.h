#pragma once

#include <string>

#include "sftrun/config/objectives.h"

namespace sftrun::config {

/// The fix for a name that is no loss of `train.loss_type`: those of the objective; null, or an objective with one loss of its
/// own: all.
std::string fix_of_unknown_loss(const ObjectiveInfo* objective);

}  // namespace sftrun::config
