#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "sftrun/config/run_config.h"

/// Resuming a run with another length (train.epochs, train.max_steps).
namespace sftrun::train {

/// The length of a run, as its checkpoints store it.
struct RunLength {
  double epochs = 0;
  std::optional<int64_t> max_steps;
  bool operator==(const RunLength&) const = default;
};
RunLength length_of(const config::TrainConfig& config);
/// @return the length stored in a checkpoint's identity; nullopt if it has none
std::optional<RunLength> length_in(const nlohmann::ordered_json& identity);

struct LengthChange {
  /// steps_before: total of the run so far; steps_now: new total
  int64_t steps_done = 0, steps_before = 0, steps_now = 0;
};

/// Accepts another run length if the learning rates of the finished steps would be the same under
/// the new length; otherwise only if `is_permitted`.
/// @param config resolved, with the new length
/// @throws ConfigError if steps_now < steps_done, or if the learning rates differ and
/// `is_permitted` is false
void require_length(const config::TrainConfig& config, const LengthChange& change,
                    bool is_permitted, const std::string& checkpoint);

}  // namespace sftrun::train
