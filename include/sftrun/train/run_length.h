#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "sftrun/config/run_config.h"

/// A run that is asked for more steps than it began with (train.epochs, train.max_steps).
namespace sftrun::train {

/// How long a run is: what its checkpoints keep of the configuration.
struct RunLength {
  double epochs = 0;
  std::optional<int64_t> max_steps;
  bool operator==(const RunLength&) const = default;
};
RunLength length_of(const config::TrainConfig& config);
/// @param identity of a checkpoint; nullopt where it does not say
std::optional<RunLength> length_in(const nlohmann::ordered_json& identity);

struct LengthChange {
  int64_t steps_done = 0, steps_before = 0, steps_now = 0;  ///< before: of the run as it began
};

/// A run goes on with another length as if it had had it from the beginning, where the learning
/// rates of the steps done are the same; where they are not, only with the user's word.
/// @param config resolved; of the run as it is asked for now
/// @throws ConfigError for fewer steps than are done, and for other learning rates unless permitted
void require_length(const config::TrainConfig& config, const LengthChange& change,
                    bool is_permitted, const std::string& checkpoint);

}  // namespace sftrun::train
