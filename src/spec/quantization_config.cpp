#include "sftrun/spec/quantization_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "json_fields.h"
#include "sftrun/core/strings.h"

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

constexpr int64_t kMostGroup = int64_t{1} << 40;

/// `one`, or the older `other`; nullopt: neither.
std::optional<int64_t> size_in(const JsonFields& fields, const char* one, const char* other) {
  for (const char* key : {one, other})
    if (fields.has(key)) return fields.require_int(key, -1, kMostGroup);
  return std::nullopt;
}

/// GPTQModel's rules for modules: {"+:PATTERN": {"bits": 8}, "-:PATTERN": {}}. The tensors show which modules
/// are not quantised, and how columns are grouped.   @return a rule with other bits; empty: none
std::string rule_with_other_bits(const JsonFields& fields) {
  if (!fields.has("dynamic")) return {};
  for (const auto& [pattern, rule] : object_of(fields, "dynamic").items()) {
    const bool has_others = rule.is_object() && rule.contains("bits") && rule["bits"] != 4;
    if (has_others)
      return fmt::format("`quantization_config.dynamic` gives {} bits to the modules \"{}\"",
                         rule["bits"].dump(), pattern);
  }
  return {};
}

void read_awq_or_gptq(const JsonFields& fields, QuantizationConfig& quantization) {
  const bool is_awq = quantization.layout() == QuantLayout::kAwq;
  const std::string otherwise =
      quantization.format.empty() ? is_awq ? "gemm" : "gptq" : quantization.format;
  quantization.variant =
      ascii_lower(fields.get_string(is_awq ? "version" : "checkpoint_format", otherwise));
  if (const auto bits = size_in(fields, "bits", "w_bit")) quantization.bits = {*bits};
  if (const auto size = size_in(fields, "group_size", "q_group_size"))
    quantization.group_sizes = {*size};
  const bool is_read = is_awq ? quantization.variant == "gemm"
                              : quantization.variant == "gptq" || quantization.has_whole_zeros();
  quantization.not_read = rule_with_other_bits(fields);
  if (!is_read) {
    quantization.not_read = fmt::format("its `quantization_config.{}` is \"{}\"; supported: {}",
                                        is_awq ? "version" : "checkpoint_format",
                                        quantization.variant, is_awq ? "gemm" : "gptq, gptq_v2");
  }
}

/// `config_groups` of compressed-tensors' pack-quantized.
void read_compressed_integers(const JsonFields& fields, QuantizationConfig& quantization) {
  if (fields.has("transform_config") && !object_of(fields, "transform_config").empty())
    quantization.not_read = "it has a `quantization_config.transform_config` (rotations)";
  if (!fields.has("config_groups")) return;
  for (const auto& [name, group] : object_of(fields, "config_groups").items()) {
    const std::string path = fields.full_name("config_groups.") + name + ".";
    const JsonFields of_group(group, fields.where(), {}, path);
    if (!of_group.has("weights")) continue;
    const JsonFields weights(object_of(of_group, "weights"), fields.where(), {}, path + "weights.");
    quantization.bits.push_back(weights.get_int("num_bits", 4, 1, 64));
    quantization.group_sizes.push_back(weights.get_int("group_size", -1, -1, kMostGroup));
    if (!weights.get_bool("symmetric", true)) quantization.is_symmetric = false;
    if (weights.get_string("type", "int") != "int")
      quantization.not_read = fmt::format("the weights of `{}` are no integers", path + "weights");
    const std::string strategy = weights.get_string("strategy", "group");
    if (strategy != "group" && strategy != "channel") {
      quantization.not_read =
          fmt::format("`{}weights.strategy` is \"{}\"; supported: group, channel", path, strategy);
    }
  }
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
                                  .block = {},
                                  .bits = {},
                                  .group_sizes = {},
                                  .variant = {},
                                  .not_read = {}};
  quantization.strategies = strategies_of(fields, quantization.block);
  if (quantization.layout() == QuantLayout::kFp8Blocks)
    quantization.block = block_of(fields, "weight_block_size");
  if (quantization.layout() == QuantLayout::kAwq || quantization.layout() == QuantLayout::kGptq)
    read_awq_or_gptq(fields, quantization);
  if (quantization.layout() == QuantLayout::kCompressedInt4)
    read_compressed_integers(fields, quantization);
  return quantization;
}

}  // namespace sftrun::spec
