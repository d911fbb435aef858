#include "sftrun/spec/quantization_config.h"

#include "json_fields.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

const json& object_of(const JsonFields& fields, const std::string& key) {
  const json& value = *fields.find(key);
  if (!value.is_object()) fields.fail(key, "an object");
  return value;
}

/// `config_groups`: the `strategy` of each group, which says how weights share scales.
std::vector<std::string> strategies_of(const JsonFields& fields) {
  std::vector<std::string> strategies;
  if (!fields.has("config_groups")) return strategies;
  for (const auto& [name, group] : object_of(fields, "config_groups").items()) {
    const std::string path = fields.full_name("config_groups.") + name + ".";
    if (!group.is_object()) fields.fail("config_groups", "an object of objects");
    const JsonFields of_group(group, fields.where(), {}, path);
    if (!of_group.has("weights")) continue;
    const JsonFields weights(object_of(of_group, "weights"), fields.where(), {}, path + "weights.");
    strategies.push_back(weights.get_string("strategy", "tensor"));
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
  return QuantizationConfig{.method = fields.get_string("quant_method", "unknown"),
                            .format = fields.get_string("format", ""),
                            .load_in_8bit = fields.get_bool("load_in_8bit", false),
                            .strategies = strategies_of(fields)};
}

}  // namespace sftrun::spec
