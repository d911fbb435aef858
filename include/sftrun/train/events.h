#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

/// What a run tells others while it trains.
namespace sftrun::train {

/// Progress that the loop reports through `Hooks::on_event`.
struct TrainEvent {
  /// "loading", "tokenizing", "fitting", "training", "evaluating", "saving"
  const char* phase = "training";
  int64_t step = 0, total_steps = 0;
  std::optional<double> loss, tokens_per_second, eta_s;
  std::optional<uint64_t> memory_bytes;  ///< the peak so far
  std::optional<uint64_t> memory_used_bytes;
  std::optional<double> gpu_percent, cpu_percent;
};
/// What a command of `callbacks` may be started for.
struct RunEvent {
  const char* name = "";  ///< "checkpoint", "evaluation"
  int64_t step = 0;
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};

}  // namespace sftrun::train
