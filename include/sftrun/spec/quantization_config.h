#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/quant_format.h"

namespace sftrun::spec {

/// The quantisation of a checkpoint's weights, from `quantization_config` in its config.json.
struct QuantizationConfig {
  std::string method;                   ///< `quant_method`: "bitsandbytes", "mxfp4", …
  std::string format;                   ///< of compressed-tensors: "float-quantized", …
  bool load_in_8bit = false;            ///< bitsandbytes: 8 bits; else 4
  std::vector<std::string> strategies;  ///< of compressed-tensors' weights: "channel", "block", …
  /// Rows and columns of the blocks that share a scale: `weight_block_size` of "fp8", or
  /// `block_structure` of compressed-tensors' weights. Empty: other scales, or not said.
  std::vector<int64_t> block;
  /// Of AWQ, GPTQ and compressed-tensors' integers: of a code, and the columns that share a scale (-1: all).
  /// compressed-tensors may have several.
  std::vector<int64_t> bits, group_sizes;
  bool is_symmetric = true;  ///< compressed-tensors: files need no zero points
  std::string variant;       ///< AWQ's `version`, GPTQ's `checkpoint_format`; in lower case
  /// What AWQ, GPTQ and compressed-tensors' integers ask for that is not read, in words; empty: nothing.
  std::string not_read;

  /// GPTQ: of version 2, which does not store zero points minus one.
  bool has_whole_zeros() const { return variant == "gptq_v2"; }
  /// Of the files; kNone: one that is not read, or MXFP4.
  QuantLayout layout() const { return layout_of_method(method, format, load_in_8bit); }
};

/// nullopt if config.json has none.   @throws DataError naming a key of the wrong type
std::optional<QuantizationConfig> read_quantization_config(const nlohmann::json& config,
                                                           const std::string& where);

}  // namespace sftrun::spec
