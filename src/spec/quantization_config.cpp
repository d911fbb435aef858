#include "sftrun/spec/quantization_config.h"

#include <algorithm>

#include "json_fields.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

const json& object_of(const JsonFields& fields, const std::string& key) {
  const json& value = *fields.find(key);
  if (!value.is_object()) fields.fail(key, "an object");
  return value;
}

/// Rows and columns; empty if the key is missing or null.
std::vector<int64_t> block_of(const JsonFields& fields, const std::string& key) {
  if (!fields.has(key)) return {};
  const json& value = *fields.find(key);
  const bool are_sizes =
      value.is_array() && value.size() == 2 &&
      std::ranges::all_of(value, [](const json& size) { return size.is_number_integer(); });
  if (!are_sizes) fields.fail(key, "two sizes: rows and columns of a block");
  return value.get<std::vector<int64_t>>();
}

/// `config_groups`: the `strategy` of each group, which says how weights share scales.
/// @param block receives `block_structure`
std::vector<std::string> strategies_of(const JsonFields& fields, std::vector<int64_t>& block) {
  std::vector<std::string> strategies;
  if (!fields.has("config_groups")) return strategies;
  for (const auto& [name, group] : object_of(fields, "config_groups").items()) {
    const std::string path = fields.full_name("config_groups.") + name + ".";
    if (!group.is_object()) fields.fail("config_groups", "an object of objects");
    const JsonFields of_group(group, fields.where(), {}, path);
    if (!of_group.has("weights")) continue;
    const JsonFields weights(object_of(of_group, "weights"), fields.where(), {}, path + "weights.");
    strategies.push_back(weights.get_string("strategy", "tensor"));
    if (strategies.back() == "block") block = block_of(weights, "block_structure");
  }
  return strategies;
}

}  // namespace

std::optional<QuantizationConfig> read_quantization_config(const json& config,
                                                           const std::string& where) {
  const JsonFields outer(config, where);
  if (!outer.has("quantization_config")) return std::nullopt;
  const JsonFields fields(object_of(outer, "quantization_config"), where, {},
                          "quantization_config.");
  QuantizationConfig quantization{.method = fields.get_string("quant_method", "unknown"),
                                  .format = fields.get_string("format", ""),
                                  .load_in_8bit = fields.get_bool("load_in_8bit", false),
                                  .strategies = {},
                                  .block = {}};
  quantization.strategies = strategies_of(fields, quantization.block);
  if (quantization.layout() == QuantLayout::kFp8Blocks)
    quantization.block = block_of(fields, "weight_block_size");
  return quantization;
}

}  // namespace sftrun::spec
