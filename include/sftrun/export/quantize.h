#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sftrun::exporting {

struct QuantizeOptions {
  std::filesystem::path model, output;
  std::string method;  ///< one of `written_quant_names`
  int64_t block_size = 64;
  bool double_quant = true;
  std::vector<std::string> skip_modules;  ///< names or parts of names
  std::string dtype;                      ///< of the other tensors: auto, f32, f16 or bf16
  uint64_t max_shard_bytes = 0;
  bool overwrite = false;
};

/// Writes a quantised model into a directory. One matrix at a time is in memory.
/// @throws ConfigError for a name to skip that names no module; DataError for a model that is
/// quantised already; DeviceError
void quantize(const QuantizeOptions& options);

}  // namespace sftrun::exporting
