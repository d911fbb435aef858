#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/train/checkpoint.h"

/// state.json: step and settings of the run, with the sizes and fingerprints of the checkpoint's
/// other files.
namespace sftrun::train {

inline constexpr const char* kStateFile = "state.json";
/// What to do about a checkpoint that is damaged or incomplete.
inline constexpr const char* kDamageFix =
    "restore it from a copy, or remove this checkpoint folder to resume from the one before it";

/// Written last, after all other files of `directory`. Stores their sizes and fingerprints.
void write_state(const std::filesystem::path& directory, const TrainState& state,
                 int64_t optimizer_steps);

/// @throws DataError if state.json is missing or damaged, or if another file is missing or has the
/// wrong size
nlohmann::ordered_json read_state_json(const std::filesystem::path& checkpoint);

}  // namespace sftrun::train
