#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Writes a quantised model as safetensors.
struct QuantizeRequest {
  std::string model, output, method;
  std::string dtype = "auto";  ///< of the tensors that are not quantised
  int64_t max_shard_size = 0;  ///< bytes
  QuantRequest quant;
  bool overwrite = false, json = false;

  SFTRUN_FIELDS(model, output, method, dtype, max_shard_size, quant, overwrite, json)
};

}  // namespace sftrun::app
