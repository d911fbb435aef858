#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sftrun/weights/checkpoint.h"

namespace sftrun::weights {

/// Summary of weight files.
struct WeightsSummary {
  uint64_t bytes = 0;                    ///< of the files
  int64_t tensors = 0;                   ///< in the files: a matrix in nf4 has several
  std::map<std::string, int64_t> types;  ///< how many tensors are stored in each: "BF16", "Q4_K"
};

/// @param path a .gguf file, or a directory: its .gguf and .safetensors files. Reads headers only.
/// @throws DataError as SafetensorsFile and GgufFile
WeightsSummary summarize_weights(const std::filesystem::path& path);

/// What commands that write weights print with --json: "path", "format", "dtype", "bytes",
/// "tensors", "types" and "measured".
/// @param dtype as --dtype or --method name it   @param measured merge_report.json's content; null:
/// nothing was measured
nlohmann::ordered_json describe_written(const std::filesystem::path& path,
                                        const std::string& format, const std::string& dtype,
                                        const nlohmann::ordered_json& measured);

/// The format of most of a checkpoint's quantised values: "nf4", "Q4_K"; empty: all are dense.
std::string packed_format(const Checkpoint& checkpoint);
/// Bytes of each quantised matrix in the files, by name.
std::map<std::string, uint64_t> packed_bytes(const Checkpoint& checkpoint);
/// Values in a block of each quantised matrix, by name.
std::map<std::string, int64_t> packed_blocks(const Checkpoint& checkpoint);

}  // namespace sftrun::weights
