#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "json_access.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "tokenizer_files.h"

namespace sftrun::tokenizer {
namespace {

namespace fs = std::filesystem;

Json read_object(const fs::path& path) {
  if (!has_optional_file(path)) return Json::object();
  Json document = parse_document(read_utf8_file(path));
  if (document.is_discarded()) throw DataError("not valid JSON", path.string());
  if (!document.is_object()) throw DataError("not a JSON object", path.string());
  return document;
}

/// A special token with a name that only this model has, such as "image_token".
bool is_own_name(std::string_view key) {
  return key.ends_with("_token") && std::find(kSpecialTokenNames.begin(), kSpecialTokenNames.end(),
                                              key) == kSpecialTokenNames.end();
}

bool is_nothing(const Json& object, const char* key) {
  return !object.contains(key) || object.at(key).is_null() || object.at(key).empty();
}

constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";  ///< its old name

void merge_into(Json& target, const Json& source) {
  for (const auto& [key, value] : source.items()) target[key] = value;
}

/// If `extra_special_tokens` is an object it names tokens; moves them from the configuration to
/// `named`.
void take_named_extra(Json& config, Json& named) {
  if (!config.contains(kExtra) || !config.at(kExtra).is_object()) return;
  merge_into(named, config.at(kExtra));
  config.erase(kExtra);
}

Json take_own_names(Json& config) {
  Json named = Json::object();
  for (const auto& [key, value] : config.items())
    if (is_own_name(key) && value.is_string()) named[key] = value;
  for (const auto& [key, value] : named.items()) config.erase(key);
  take_named_extra(config, named);
  return named;
}

Json marked_special(Json value) {
  if (value.is_object()) value["special"] = true;
  return value;
}

void append_new(Json& list, const Json& values) {
  std::unordered_set<std::string> known;
  for (const Json& token : list) known.insert(token.dump());
  for (const Json& value : values) {
    Json token = marked_special(value);
    if (known.insert(token.dump()).second) list.push_back(std::move(token));
  }
}

void overrule(Json& config, const Json& map) {
  for (const auto& [key, value] : map.items()) {
    if (key != kExtra) {
      config[key] = marked_special(value);
    } else if (value.is_array()) {
      if (is_nothing(config, kExtra)) config[kExtra] = Json::array();
      append_new(config[kExtra], value);
    } else {
      config[key] = value;
    }
  }
}

/// The special tokens that added_tokens.json may name; transformers compares only texts and skips
/// tokens with a type.
std::vector<std::string> special_of_old(const Json& config) {
  std::vector<std::string> out;
  const auto add = [&](const Json& value) {
    if (value.is_object() && value.contains("__type")) return;
    if (const auto text = token_text(value)) out.push_back(*text);
  };
  for (const char* key : kSpecialTokenNames)
    if (config.contains(key)) add(config.at(key));
  if (config.contains(kExtra) && config.at(kExtra).is_array())
    for (const Json& value : config.at(kExtra)) add(value);
  return out;
}

}  // namespace

std::optional<std::string> token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value.at("content").is_string())
    return value.at("content").get<std::string>();
  return std::nullopt;
}

TokenizerConfig TokenizerConfig::read(const fs::path& directory) {
  const fs::path path = directory / "tokenizer_config.json";
  TokenizerConfig out;
  out.where = path.string();
  out.config = read_object(path);
  Json& config = out.config;
  if (config.contains(kAdditional) && is_nothing(config, kExtra)) {
    config[kExtra] = config.at(kAdditional);
    config.erase(kAdditional);
  }
  const bool is_complete = config.contains("added_tokens_decoder");
  Json named = take_own_names(config);
  if (!is_complete) {
    overrule(config, read_object(directory / "special_tokens_map.json"));
    take_named_extra(config, named);
    out.added_tokens = read_object(directory / "added_tokens.json");
    out.old_special = special_of_old(config);
  }
  if (config.contains(kAdditional) && !config.contains(kExtra))
    config[kExtra] = config.at(kAdditional);
  for (const auto& [key, value] : config.items())
    if (is_own_name(key) && token_text(value)) out.own_special[key] = value;
  merge_into(out.own_special, named);
  if (!is_nothing(config, kExtra)) out.extra_special = array_at(config, kExtra, out.where);
  return out;
}

std::optional<std::string> TokenizerConfig::token(const char* key) const {
  return config.contains(key) ? token_text(config.at(key)) : std::nullopt;
}

std::map<std::string, std::string> special_token_texts(const fs::path& directory) {
  const TokenizerConfig config = TokenizerConfig::read(directory);
  std::map<std::string, std::string> texts;
  for (const char* key : kSpecialTokenNames)
    if (auto text = config.token(key)) texts.emplace(key, std::move(*text));
  return texts;
}

namespace {

/// `chat_template` of a JSON file: a text, or the "default" of a list.
std::optional<std::string> chat_template_of(const fs::path& file) {
  const Json config = read_object(file);
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const Json& named : *found) {
    if (named.is_object() && named.value("name", Json()) == "default" &&
        named.value("template", Json()).is_string())
      return named["template"].get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> chat_template_in(const fs::path& directory) {
  if (has_optional_file(directory / "chat_template.jinja"))
    return read_utf8_file(directory / "chat_template.jinja");
  if (auto own = chat_template_of(directory / "tokenizer_config.json")) return own;
  return chat_template_of(directory / "chat_template.json");  // of a processor
}

std::optional<bool> TokenizerConfig::flag(const char* key) const {
  if (!config.contains(key) || config.at(key).is_null()) return std::nullopt;
  return bool_at(config, key, false, where);
}

std::string TokenizerConfig::tokenizer_class() const {
  if (!config.contains("tokenizer_class") || !config.at("tokenizer_class").is_string()) return "";
  auto name = config.at("tokenizer_class").get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

}  // namespace sftrun::tokenizer
