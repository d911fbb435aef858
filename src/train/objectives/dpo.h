#pragma once

#include "sftrun/train/objective.h"

namespace sftrun::train {

/// Direct preference optimization (arXiv:2305.18290, equation 7), the mean over pairs:
///     -log sigmoid(margin), with the margin of pairs.h
ObjectiveValue dpo(const DocumentSums& sums, const config::TrainConfig& config);

}  // namespace sftrun::train
