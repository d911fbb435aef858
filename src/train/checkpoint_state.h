#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/train/checkpoint.h"

/// state.json: step and settings of the run, with the sizes and fingerprints of the checkpoint's
/// other files.
namespace sftrun::train {

inline constexpr const char* kStateFile = "state.json";
/// Whole tensors of trained base weights, or of what an adapter's file does not hold.
inline constexpr const char* kTrainableFile = "trainable.safetensors";
/// What to do about a checkpoint that is damaged or incomplete.
inline constexpr const char* kDamageFix =
    "restore it from a copy, or remove this checkpoint folder to resume from the one before it";

/// {file: {"bytes", "fingerprint"}} of files of a checkpoint.
using FileRecords = nlohmann::ordered_json;

/// The length and the fingerprint of a file.
FileRecords record_of(const std::filesystem::path& file);

/// Written last, after all other files of `directory`. Stores their lengths and fingerprints.
/// @param records of files whose fingerprints are known; the others are read
void write_state(const std::filesystem::path& directory, const TrainState& state,
                 int64_t optimizer_steps, FileRecords records = FileRecords::object());

/// @param checks_lengths false: of the other files nothing is looked at
/// @throws DataError if state.json is missing or damaged, or if another file is missing or has the
/// wrong size
nlohmann::ordered_json read_state_json(const std::filesystem::path& checkpoint,
                                       bool checks_lengths = true);

/// @param state of `read_state_json`
std::vector<Build> builds_in(const nlohmann::ordered_json& state);
std::optional<BestState> best_in(const nlohmann::ordered_json& state);

/// The values of a tensor in a checkpoint's file, as a view of the mapped file.
/// @param path of the file   @param shape of the tensor   @param type fp32 or uint8
/// @throws DataError if the file lacks it or has it in another size
at::Tensor values_in(const weights::SafetensorsFile& file, const std::filesystem::path& path,
                     const std::string& name, at::IntArrayRef shape, at::ScalarType type);

}  // namespace sftrun::train
