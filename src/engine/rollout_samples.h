#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "sftrun/config/run_config.h"

/// What the run directory keeps of answers that a run writes.
namespace sftrun::engine {

/// Whether some answers of a step are kept.   @param step from 0
bool keeps_rollout_samples(const config::TrainConfig& train, int64_t step);

/// Writes rollouts/step-NNNNNN.jsonl.   @param step from 0   @param lines JSON, each with a line break
void write_rollout_samples(const std::filesystem::path& run_dir, int64_t step,
                           const std::string& lines);

}  // namespace sftrun::engine
