#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sftrun::spec {

/// What a config.json's `quantization_config` says of how its weights are held.
struct QuantizationConfig {
  std::string method;                   ///< `quant_method`: "bitsandbytes", "mxfp4", …
  std::string format;                   ///< of compressed-tensors: "float-quantized", …
  bool load_in_8bit = false;            ///< of bitsandbytes; else in 4
  std::vector<std::string> strategies;  ///< of compressed-tensors' weights: "channel", "block", …

  bool is_fp8() const {
    return method == "fbgemm_fp8" ||
           (method == "compressed-tensors" && format == "float-quantized");
  }
};

/// None where a config.json has none.   @throws DataError naming a key that is no such thing
std::optional<QuantizationConfig> read_quantization_config(const nlohmann::json& config,
                                                           const std::string& where);

}  // namespace sftrun::spec
