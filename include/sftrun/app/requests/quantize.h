#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Writes a quantised model as safetensors.
struct QuantizeRequest {
  std::string model, output, method;
  std::string dtype = "auto";  ///< of the tensors that are not quantised
  int64_t max_shard_size = 0;  ///< bytes
  int64_t block_size = 64;     ///< values that share a scale
  bool double_quant = true;
  std::vector<std::string> skip_modules;
  bool overwrite = false, json = false;

  SFTRUN_FIELDS(model, output, method, dtype, max_shard_size, block_size, double_quant,
                skip_modules, overwrite, json)
};

}  // namespace sftrun::app
