#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"

/// The state of a run's optimizer, known before a model is loaded.
namespace sftrun::config {

/// The tensors of the state of one tensor, as checkpoints have them.
/// @param shape as model files have it
std::vector<StateSize> optimizer_state(const TrainConfig& train, TensorRole role,
                                       const std::vector<int64_t>& shape);
/// Their bytes.
int64_t optimizer_state_bytes(const TrainConfig& train, TensorRole role,
                              const std::vector<int64_t>& shape);

}  // namespace sftrun::config
