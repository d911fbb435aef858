#include "tracker.h"

namespace sftrun::track {
namespace {

void add_texts(const std::string& key, const nlohmann::ordered_json& value,
               std::vector<std::pair<std::string, std::string>>& texts) {
  if (value.is_object()) {
    for (const auto& [name, inner] : value.items())
      add_texts(key.empty() ? name : key + "." + name, inner, texts);
    return;
  }
  texts.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> settings_texts(const config::RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> texts;
  add_texts("", config::to_json(config), texts);
  return texts;
}

}  // namespace sftrun::track
