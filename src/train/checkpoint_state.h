#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/train/checkpoint.h"

/// state.json, the file that makes a checkpoint: where the run stands, and what each of the other
/// files must be.
namespace sftrun::train {

inline constexpr const char* kStateFile = "state.json";

/// Written when every other file of `directory` is. Holds their lengths and fingerprints.
void write_state(const std::filesystem::path& directory, const TrainState& state,
                 int64_t optimizer_steps);

/// @throws DataError if it is missing or damaged, or a file has not the length it names
nlohmann::ordered_json read_state_json(const std::filesystem::path& checkpoint);

}  // namespace sftrun::train
