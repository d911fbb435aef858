#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/weights/checkpoint.h"

/// Merges an adapter into its base, or converts a model without one, tensor by tensor: the memory
/// of one tensor is enough for a model of any size.
namespace sftrun::exporting {

struct MergeOptions {
  std::filesystem::path base, output;
  std::optional<std::filesystem::path> adapter;  ///< nullopt: the model is converted
  /// Of full or partial training; not with an adapter. Its weights take the place of the base's.
  std::optional<std::filesystem::path> checkpoint;
  /// auto, f32, f16 or bf16; one of `written_quant_names`; of a GGUF file its type
  std::string dtype;
  std::string format;      ///< "safetensors" or "gguf"
  bool as_stored = false;  ///< merge into the base's own values, although the run quantised them
  bool overwrite = false;
  uint64_t max_shard_bytes = 0;
  // For a merged model in 4 or 8 bits.
  std::optional<int64_t> block_size;  ///< nullopt: the base's, else the default
  bool no_double_quant = false;
  std::vector<std::string> skip_modules;

  /// Whether `output` names the file, and not a directory to write.
  bool writes_file() const { return format == "gguf" && output.extension() == ".gguf"; }
};

/// A model that was written.
struct WrittenModel {
  std::filesystem::path path;  ///< a directory, or a .gguf file
  /// llama.cpp's file of the image side, beside a .gguf file; nullopt: there is none
  std::optional<std::filesystem::path> images = std::nullopt;
  std::string dtype;               ///< as --dtype names it; "auto": every tensor keeps its type
  std::string stored;              ///< how the weights are stored, in words
  bool is_below_8_bits = false;    ///< some matrices have fewer than 8 bits
  bool in_more_than_base = false;  ///< more bits than the base, without being asked to
};

struct MergedModel {
  std::shared_ptr<const weights::Checkpoint> base;  ///< the model that was merged into
  WrittenModel written;
};

/// Writes the model and logs what was written.
/// @throws ConfigError; DataError for an adapter that does not fit its base; DeviceError
MergedModel merge(const MergeOptions& options);

}  // namespace sftrun::exporting
