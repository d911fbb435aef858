#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "json_access.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "tokenizer_files.h"

namespace sftrun::text {
namespace {

namespace fs = std::filesystem;

Json read_object(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  Json document = parse_document(read_text_file(path));
  if (document.is_discarded()) throw DataError("not valid JSON", path.string());
  if (!document.is_object()) throw DataError("not a JSON object", path.string());
  return document;
}

/// "<s>" or {"content": "<s>", …}
std::optional<std::string> token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value.at("content").is_string())
    return value.at("content").get<std::string>();
  return std::nullopt;
}

std::optional<std::string> token_at(const Json& document, const char* key) {
  return document.contains(key) ? token_text(document.at(key)) : std::nullopt;
}

AddedToken added_token(const Json& value, const std::string& content, TokenId id,
                       const std::string& where) {
  const Json none = Json::object();
  const Json& flags = value.is_object() ? value : none;
  const bool special = bool_at(flags, "special", true, where);
  return {.id = id,
          .content = content,
          .single_word = bool_at(flags, "single_word", false, where),
          .lstrip = bool_at(flags, "lstrip", false, where),
          .rstrip = bool_at(flags, "rstrip", false, where),
          .normalized = bool_at(flags, "normalized", !special, where),
          .special = special};
}

/// "added_tokens_decoder": {"32000": {"content": …}}, in order of ids.
std::map<int64_t, AddedToken> added_tokens_decoder(const TokenizerConfig& config) {
  std::map<int64_t, AddedToken> out;
  if (!config.config.contains("added_tokens_decoder")) return out;
  const Json& entries = object_at(config.config, "added_tokens_decoder", config.where);
  for (const auto& [key, value] : entries.items()) {
    const auto content = token_text(value);
    const bool is_id =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id || !content)
      throw DataError(fmt::format("`added_tokens_decoder` has the impossible entry `{}`", key),
                      config.where);
    const auto id = static_cast<TokenId>(std::stol(key));
    out.emplace(id, added_token(value, *content, id, config.where));
  }
  return out;
}

/// added_tokens.json: {"<extra>": 32000}, in order of ids.
std::map<int64_t, AddedToken> added_tokens_file(const TokenizerConfig& config) {
  std::map<int64_t, AddedToken> out;
  for (const auto& [content, id] : config.added_tokens.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw DataError(fmt::format("added_tokens.json has no id for `{}`", content), config.where);
    out.emplace(id.get<int64_t>(),
                AddedToken{.id = id.get<TokenId>(), .content = content, .normalized = true});
  }
  return out;
}

}  // namespace

TokenizerConfig TokenizerConfig::read(const fs::path& directory) {
  const fs::path path = directory / "tokenizer_config.json";
  return {read_object(path), read_object(directory / "special_tokens_map.json"),
          read_object(directory / "added_tokens.json"), path.string()};
}

std::optional<std::string> TokenizerConfig::token(const char* key) const {
  auto text = token_at(config, key);
  return text ? text : token_at(special_tokens_map, key);
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

void add_configured_tokens(const TokenizerConfig& config, TokenizerSource& source) {
  const auto is_known = [&](const std::string& content) {
    return std::any_of(source.added.begin(), source.added.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  auto decoder = added_tokens_decoder(config);
  const bool is_old = decoder.empty();
  for (auto& [id, token] : is_old ? added_tokens_file(config) : std::move(decoder))
    source.added.push_back(std::move(token));
  const auto add_special = [&](const Json& value) {
    const auto content = token_text(value);
    if (!content || content->empty()) return;
    if (!is_known(*content)) {
      source.added.push_back(added_token(value, *content, 0, config.where));
    } else if (is_old) {
      for (AddedToken& token : source.added) {
        if (token.content != *content) continue;
        token.special = true;
        token.normalized = false;
      }
    }
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    for (const Json* document : {&config.config, &config.special_tokens_map})
      if (document->contains(key)) add_special(document->at(key));
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    for (const Json* document : {&config.config, &config.special_tokens_map}) {
      if (!document->contains(key) || !document->at(key).is_array()) continue;
      for (const Json& value : document->at(key)) add_special(value);
    }
  }
}

}  // namespace sftrun::text
