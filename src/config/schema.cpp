#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/config/binding.h"
#include "sftrun/core/projector_sizes.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

void add_limits(Json& schema, const Limits& limits) {
  if (std::isfinite(limits.min))
    schema[limits.above_min ? "exclusiveMinimum" : "minimum"] = limits.min;
  if (std::isfinite(limits.max))
    schema[limits.below_max ? "exclusiveMaximum" : "maximum"] = limits.max;
}

Json number_schema(const char* type, const Limits& limits) {
  Json schema = {{"type", type}};
  add_limits(schema, limits);
  return schema;
}

/// YAML 1.1 readers pass `no` and `off` to a validator as false, `yes` and `on` as true.
Json choice_schema(const Field& field) {
  Json words = Json::array();
  for (const auto* list : {&field.words, &field.aliases}) {
    for (const std::string& word : *list) words.push_back(word);
  }
  for (const bool truth : {false, true}) {
    const std::string word = truth ? "true" : "false";
    if (std::find(words.begin(), words.end(), word) != words.end()) words.push_back(truth);
  }
  return {{"enum", words}};
}

Json sources_schema() {
  const Json text = {{"type", "string"}};
  Json source = {{"type", "object"},
                 {"required", Json::array({"path"})},
                 {"additionalProperties", false},
                 {"properties", Json::object()}};
  for (const char* key : {"path", "split", "format"}) source["properties"][key] = text;
  source["properties"]["weight"] = {{"type", "number"}, {"exclusiveMinimum", 0}};
  source["properties"]["max_samples"] = {{"type", "integer"}, {"minimum", 1}};
  source["properties"]["fields"] = {{"type", "object"}};
  const Json item = {{"anyOf", Json::array({text, source})}};
  return {{"anyOf", Json::array({text, source, Json{{"type", "array"}, {"items", item}}})}};
}

Json map_of_parts(const Json& value) {
  Json schema = {
      {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  for (const ModelPart part : kModelParts)
    schema["properties"][std::string(part_name(part))] = value;
  return schema;
}

Json parts_schema() {
  Json names = Json::array();
  for (const ModelPart part : kModelParts) names.push_back(part_name(part));
  const Json name = {{"enum", names}};
  const Json list = {{"type", "array"}, {"items", name}, {"minItems", 1}, {"uniqueItems", true}};
  const Json training = {{"enum", Json::array({"lora", "full", "qlora"})}};
  return {{"anyOf", Json::array({name, list, map_of_parts(training)})}};
}

Json projectors_schema() {
  Json sizes = {{"type", "object"},
                {"additionalProperties", false},
                {"required", Json::array({"input_width"})},
                {"properties", Json::object()}};
  for (const ProjectorSize& size : kProjectorSizes)
    sizes["properties"][size.key] =
        Json{{"type", Json::array({"integer", "null"})}, {"minimum", 1}};
  return {{"type", "object"}, {"additionalProperties", sizes}};
}

Json losses_schema() {
  Json names = Json::array(), weights = Json::object();
  for (const PreferenceLossInfo& loss : kPreferenceLosses) {
    names.push_back(loss.name);
    weights[std::string(loss.name)] = Json{{"type", "number"}, {"exclusiveMinimum", 0}};
  }
  const Json name = {{"enum", names}};
  const Json mixture = {
      {"type", "object"}, {"properties", weights}, {"additionalProperties", false}};
  return {{"anyOf", Json::array({name, Json{{"type", "array"}, {"items", name}}, mixture})}};
}

Json reward_setting_schema(const RewardSetting& setting) {
  using enum RewardSetting::Type;
  const Json text = {{"type", "string"}};
  switch (setting.type) {
    case kText:
      return text;
    case kTexts:
      return {{"anyOf", Json::array({text, Json{{"type", "array"}, {"items", text}}})}};
    case kNumber:
      return {{"type", "number"}};
    case kCount:
      return {{"type", "integer"}};
    case kFlag:
      return {{"type", "boolean"}};
    case kChoice:
      break;
  }
  Json words = Json::array();
  for (const std::string_view word : setting.choices) words.push_back(word);
  return {{"enum", words}};
}

Json rewards_schema() {
  Json names = Json::array(), kinds = Json::array();
  for (const RewardInfo& reward : kRewards) {
    names.push_back(reward.name);
    Json properties = {{"name", {{"const", reward.name}}},
                       {"label", {{"type", "string"}}},
                       {"weight", {{"type", "number"}}}};
    for (const RewardSetting& setting : reward.settings) {
      Json& schema = properties[std::string(setting.name)] = reward_setting_schema(setting);
      schema["description"] = setting.description;
    }
    kinds.push_back({{"type", "object"},
                     {"required", Json::array({"name"})},
                     {"properties", properties},
                     {"additionalProperties", false}});
  }
  Json one = {{"anyOf", kinds}};
  one["anyOf"].push_back({{"enum", names}});
  const Json list = {{"type", "array"}, {"items", one}, {"minItems", 1}};
  return {{"anyOf", Json::array({one, list})}};
}

Json type_schema(const Field& field) {
  switch (field.type) {
    case FieldType::kBool:
      return {{"type", "boolean"}};
    case FieldType::kInt:
      return number_schema("integer", field.limits);
    case FieldType::kAutoInt: {
      return {{"anyOf",
               Json::array({Json{{"const", "auto"}}, number_schema("integer", field.limits)})}};
    }
    case FieldType::kNumber:
      return number_schema("number", field.limits);
    case FieldType::kText:
      // A time or a name may look like a number.
      return {{"type", Json::array({"string", "number"})}};
    case FieldType::kTextList:
    case FieldType::kTargets: {
      const Json text = {{"type", "string"}};
      return {{"anyOf", Json::array({text, Json{{"type", "array"}, {"items", text}}})}};
    }
    case FieldType::kChoice:
      return choice_schema(field);
    case FieldType::kObject:
      return {{"type", "object"}};
    case FieldType::kDeviceMap:
      return {{"anyOf", Json::array({Json{{"type", Json::array({"string", "integer"})}},
                                     Json{{"type", "object"},
                                          {"additionalProperties",
                                           {{"type", Json::array({"string", "integer"})}}}}})}};
    case FieldType::kSources:
      return sources_schema();
    case FieldType::kParts:
      return parts_schema();
    case FieldType::kPartRates:
      return map_of_parts(number_schema("number", field.limits));
    case FieldType::kProjectors:
      return projectors_schema();
    case FieldType::kLosses:
      return losses_schema();
    case FieldType::kRewards:
      return rewards_schema();
  }
  return {};
}

/// Any field may be empty, which means its default.
Json field_schema(const Field& field) {
  Json schema = {{"description", field.help}};
  schema["anyOf"] = Json::array({type_schema(field), Json{{"type", "null"}}});
  const Json initial = field.get();
  if (!initial.is_null() && field.limits.unset.empty()) schema["default"] = initial;
  return schema;
}

Json section_schema(const std::string& help) {
  return {{"description", help},
          {"type", Json::array({"object", "null"})},
          {"properties", Json::object()},
          {"additionalProperties", false}};
}

Json& section_at(Json& root, const std::string& name) {
  Json* schema = &root;
  size_t begin = 0;
  while (begin != std::string::npos) {
    const size_t end = name.find('.', begin);
    schema =
        &(*schema)["properties"][name.substr(begin, end == std::string::npos ? end : end - begin)];
    begin = end == std::string::npos ? end : end + 1;
  }
  return *schema;
}

/// Keys that are accepted with a warning.
void add_ignored_keys(Json& train) {
  const Json ignored = {{"description", "Has no effect."}};
  for (const char* key : {"eval_accumulation_steps", "eval_do_concat_batches", "batch_eval_metrics",
                          "eval_use_gather_object"})
    train["properties"][key] = ignored;
}

/// Fields that may be written inside a map, too (`main_key`).
void add_early_stopping(Json& train) {
  Json& properties = train["properties"];
  properties["early_stopping"] = {
      {"type", "object"},
      {"description", "Other spelling of early_stopping_patience and early_stopping_threshold."},
      {"properties",
       {{"patience", properties["early_stopping_patience"]},
        {"threshold", properties["early_stopping_threshold"]}}},
      {"additionalProperties", false}};
}

}  // namespace

// No key is required, because overrides may set it.
std::string json_schema() {
  RunConfig defaults;
  const Binding binding = bind(defaults);
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "sftrun run configuration"},
                 {"type", "object"},
                 {"properties", Json::object()},
                 {"additionalProperties", false}};
  for (const Section& section : binding.sections)
    section_at(schema, section.name) = section_schema(section.help);
  for (const Field& field : binding.fields) {
    section_at(schema, field.section())["properties"][field.leaf()] = field_schema(field);
  }
  add_ignored_keys(section_at(schema, "train"));
  add_early_stopping(section_at(schema, "train"));
  return schema.dump(2) + "\n";
}

}  // namespace sftrun::config
