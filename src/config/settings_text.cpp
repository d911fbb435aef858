#include "sftrun/config/settings_text.h"

#include <nlohmann/json.hpp>

#include "sftrun/config/value.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"

namespace sftrun::config {
namespace {

std::string one_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Maps without keys, and lists, are one setting.
void add_settings(const std::string& key, const Value& value, SettingsText& settings) {
  if (value.kind != Value::Kind::kMap || value.items.empty()) {
    const bool is_scalar = value.kind == Value::Kind::kScalar;
    settings.emplace_back(key, is_scalar ? value.text : one_line(to_json(value)));
    return;
  }
  for (size_t i = 0; i < value.items.size(); ++i)
    add_settings(key.empty() ? value.keys[i].text : key + "." + value.keys[i].text, value.items[i],
                 settings);
}

}  // namespace

SettingsText read_settings_text(const std::filesystem::path& yaml) {
  Problems problems;
  const Value document = parse_yaml(read_text_file(yaml), yaml.string(), problems);
  throw_if_any(problems);
  SettingsText settings;
  if (document.kind == Value::Kind::kMap) add_settings("", document, settings);
  return settings;
}

}  // namespace sftrun::config
