#include "sftrun/config/optimizer_state.h"

#include "row_settings.h"

namespace sftrun::config {

std::vector<StateSize> optimizer_state(const TrainConfig& train, TensorRole role,
                                       const std::vector<int64_t>& shape) {
  return optimizer_info(train.optimizer)
      .state({.role = role, .shape = shape, .momentum = train.resolved_momentum()});
}

int64_t optimizer_state_bytes(const TrainConfig& train, TensorRole role,
                              const std::vector<int64_t>& shape) {
  int64_t bytes = 0;
  for (const StateSize& part : optimizer_state(train, role, shape))
    bytes += part.values * part.bytes_per_value;
  return bytes;
}

std::vector<std::string_view> optimizer_settings() {
  return settings_of(kOptimizers);
}

Optimizer on_device(Optimizer optimizer) {
  for (const OptimizerInfo& info : kOptimizers)
    if (info.on_host == optimizer && !info.is_on_host()) return info.optimizer;
  return optimizer;
}

}  // namespace sftrun::config
