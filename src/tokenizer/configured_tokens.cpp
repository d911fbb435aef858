#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "json_access.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "tokenizer_files.h"

namespace sftrun::tokenizer {
namespace {

/// Tokens by id and by text. If an id occurs twice, the later token counts.
struct Stated {
  std::map<int64_t, AddedToken> by_id;
  std::map<std::string, AddedToken> by_text;

  void add(int64_t id, const AddedToken& token) {
    by_id[id] = token;
    by_text[token.content] = token;
  }
};

/// A plain string is a special token; an object has a field that says whether it is.
AddedToken token_of(const Json& value, const std::string& content, const std::string& where) {
  const Json none = Json::object();
  const Json& flags = value.is_object() ? value : none;
  const bool special = bool_at(flags, "special", !flags.contains("__type"), where);
  return {.content = content,
          .single_word = bool_at(flags, "single_word", false, where),
          .lstrip = bool_at(flags, "lstrip", false, where),
          .rstrip = bool_at(flags, "rstrip", false, where),
          .normalized = bool_at(flags, "normalized", !special, where),
          .special = special};
}

/// "added_tokens_decoder": {"32000": {"content": …}}
void read_added_tokens_decoder(const TokenizerConfig& config, Stated& stated) {
  const Json& entries = object_at(config.config, "added_tokens_decoder", config.where);
  for (const auto& [key, value] : entries.items()) {
    const auto content = token_text(value);
    const bool is_id =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id || !content || !value.is_object())
      throw DataError(fmt::format("`added_tokens_decoder` has the invalid entry `{}`", key),
                      config.where);
    Json flags = value;
    flags["__type"] = "AddedToken";
    AddedToken token = token_of(flags, *content, config.where);
    token.id = static_cast<TokenId>(std::stol(key));
    stated.add(token.id, token);
  }
}

/// added_tokens.json: {"<extra>": 32000}
void read_added_tokens_file(const TokenizerConfig& config, Stated& stated) {
  const std::unordered_set<std::string> special(config.old_special.begin(),
                                                config.old_special.end());
  for (const auto& [content, id] : config.added_tokens.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw DataError(fmt::format("added_tokens.json has no id for `{}`", content), config.where);
    const bool is_special = special.contains(content);
    stated.add(id.get<int64_t>(), {.id = id.get<TokenId>(),
                                   .content = content,
                                   .normalized = !is_special,
                                   .special = is_special});
  }
}

Stated read_stated(const TokenizerConfig& config, const std::vector<AddedToken>& of_file) {
  Stated stated;
  if (config.config.contains("added_tokens_decoder")) {
    read_added_tokens_decoder(config, stated);
  } else {
    read_added_tokens_file(config, stated);
    for (const AddedToken& token : of_file) stated.add(token.id, token);
  }
  return stated;
}

/// Special tokens with a name, in transformers' order.
std::vector<AddedToken> named_tokens(const TokenizerConfig& config, const Stated& stated,
                                     const Json& padding) {
  std::vector<AddedToken> out;
  const auto add = [&](const Json& value) {
    if (const auto content = token_text(value))
      out.push_back(token_of(value, *content, config.where));
  };
  for (const std::string key : kSpecialTokenNames) {
    const bool is_named = config.config.contains(key);
    const auto content = is_named ? token_text(config.config.at(key)) : std::nullopt;
    if (content && stated.by_text.contains(*content)) {
      out.push_back(stated.by_text.at(*content));
    } else if (is_named) {
      add(config.config.at(key));
    } else if (key == "pad_token" && padding.is_object() && padding.contains(key)) {
      add(padding.at(key));  // a tokenizer.json with padding names the token
    }
  }
  for (const auto& [key, value] : config.own_special.items()) add(value);
  return out;
}

std::vector<AddedToken> extra_tokens(const TokenizerConfig& config) {
  std::vector<AddedToken> out;
  for (const Json& value : config.extra_special) {
    const auto content = token_text(value);
    if (!content)
      throw DataError(
          fmt::format("`extra_special_tokens` has the invalid entry {}", excerpt(value.dump())),
          config.where);
    out.push_back(token_of(value, *content, config.where));
  }
  return out;
}

/// Qwen2Tokenizer adds all its special tokens again, each as a plain text.
void add_without_flags(const std::vector<AddedToken>& tokens, TokenizerSource& source) {
  for (const AddedToken& token : tokens)
    source.added.push_back({.content = token.content, .special = true});
}

}  // namespace

void add_configured_tokens(const TokenizerConfig& config, TokenizerSource& source,
                           bool has_tokenizer_json) {
  const auto of_file = has_tokenizer_json ? source.added : std::vector<AddedToken>();
  const Stated stated = read_stated(config, of_file);
  std::set<std::string> known, special;
  for (const AddedToken& token : of_file) known.insert(token.content);
  std::vector<AddedToken> added;
  for (const auto& [id, token] : stated.by_id) {
    known.insert(token.content);
    added.push_back(token);
  }
  const auto named = named_tokens(config, stated, source.padding), extra = extra_tokens(config);
  for (const AddedToken& token : named) special.insert(token.content);
  for (const auto* tokens : {&named, &extra}) {
    for (const AddedToken& token : *tokens)
      if (!known.contains(token.content)) added.push_back(token);
  }
  for (AddedToken& token : added) {
    token.special = token.special || special.contains(token.content);
    source.added.push_back(std::move(token));
  }
  if (has_tokenizer_json && config.tokenizer_class() == "Qwen2Tokenizer") {
    add_without_flags(named, source);
    add_without_flags(extra, source);
  }
}

}  // namespace sftrun::tokenizer
