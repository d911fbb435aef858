#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/binding.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/yaml_text.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

/// A binding needs a mutable configuration, so visitors that only read get a copy.
Binding bind_copy(const RunConfig& config, RunConfig& copy) {
  copy = config;
  return bind(copy);
}

/// Maps become one entry for each of their values.
void add_flat(const std::string& key, const Json& value, Json& out) {
  if (!value.is_object() || value.empty()) {
    out[key] = value;
    return;
  }
  for (const auto& [name, inner] : value.items()) add_flat(key + "." + name, inner, out);
}

size_t depth_of(const std::string& section) {
  return static_cast<size_t>(std::count(section.begin(), section.end(), '.'));
}

}  // namespace

Json::json_pointer pointer_to(std::string key) {
  std::replace(key.begin(), key.end(), '.', '/');
  return Json::json_pointer("/" + std::move(key));
}

Json to_json(const RunConfig& config) {
  RunConfig copy;
  Json json = Json::object();
  for (const Field& field : bind_copy(config, copy).fields)
    json[pointer_to(field.key)] = field.get();
  return json;
}

namespace {

/// Settings of a loss that are their defaults, as if they were not given.
RunConfig with_losses_as_unset(RunConfig config) {
  TrainConfig& train = config.train;
  const auto unset_if = [](std::optional<double>& value, double initial) {
    if (value == initial) value.reset();
  };
  const ObjectiveInfo& objective = train.objective_info();
  const LossMixture losses = train.losses();
  if (!objective.losses.empty() && losses == LossMixture{{{objective.losses.front(), 1}}})
    train.loss_type = {};
  const bool has_exo =
      std::any_of(losses.shares.begin(), losses.shares.end(),
                  [](const LossShare& share) { return share.loss == PreferenceLoss::kExoPair; });
  if (!has_exo) unset_if(train.label_smoothing, 0);
  unset_if(train.ld_alpha, 1);
  unset_if(train.cpo_alpha, objective.cpo_alpha);
  return config;
}

/// Whether only objectives read the key that the run does not have.
bool is_of_other_objectives(std::string_view key, const RunConfig& config) {
  const std::vector<std::string_view> settings = objective_settings();
  return std::find(settings.begin(), settings.end(), key) != settings.end() &&
         !config.train.objective_info().reads(key);
}

}  // namespace

Json identity_settings(const RunConfig& given) {
  RunConfig config = with_losses_as_unset(given), copy, initial;
  // A checkpoint may come from a version whose default was the same number for all objectives.
  for (RunConfig* each : {&config, &initial}) each->train.beta = each->train.resolved_beta();
  config.train.rollouts.reward = without_ways(config.train.rollouts.reward);
  if (config.train.rollouts.is_by_server())  // at any address
    config.train.rollouts.engine = "a server";
  // A paged optimizer computes the same, in another memory.
  config.train.optimizer = on_device(config.train.optimizer);
  const Json defaults = to_json(initial);
  Json settings = Json::object();
  for (const Field& field : bind_copy(config, copy).fields) {
    if (field.on_resume != OnResume::kSame && field.on_resume != OnResume::kLength) continue;
    const bool is_read = !is_of_other_objectives(field.key, config);
    add_flat(field.key, is_read ? field.get() : defaults.at(pointer_to(field.key)), settings);
  }
  return settings;
}

std::vector<std::string> length_keys() {
  RunConfig config;
  std::vector<std::string> keys;
  for (const Field& field : bind(config).fields)
    if (field.on_resume == OnResume::kLength) keys.push_back(field.key);
  return keys;
}

RunConfig from_json(const Json& json) {
  RunConfig config;
  Binding binding = bind(config);
  Problems problems;
  for (const Field& field : binding.fields) {
    const Json::json_pointer pointer = pointer_to(field.key);
    if (!json.contains(pointer)) {
      problems.push_back({fmt::format("`{}` is missing", field.key), "configuration in JSON", {}});
      continue;
    }
    const Json& value = json.at(pointer);
    if (value.is_null()) continue;
    if (const auto complaint = field.assign(value_from_json(value))) {
      problems.push_back({fmt::format("`{}` {}", field.key, complaint->what),
                          "configuration in JSON", complaint->fix});
    }
  }
  throw_if_any(problems);
  return config;
}

std::string to_yaml(const RunConfig& config) {
  RunConfig copy;
  const Binding binding = bind_copy(config, copy);
  std::string text;
  for (const Section& section : binding.sections) {
    const std::string indent(2 * depth_of(section.name), ' ');
    text += fmt::format("{}{}:\n", indent, section.name.substr(section.name.rfind('.') + 1));
    for (const Field& field : binding.fields) {
      if (field.section() != section.name) continue;
      text += fmt::format("{}  {}: {}\n", indent, field.leaf(), yaml_text(field.get()));
    }
  }
  return text;
}

}  // namespace sftrun::config
