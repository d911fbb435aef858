#include "model.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {

std::vector<std::optional<std::string>> texts_by_id(
    const std::vector<std::pair<std::string, TokenId>>& vocab, const std::string& where) {
  // Tables are indexed by id, so an id far beyond the number of tokens is treated as a damaged
  // file.
  const int64_t limit = static_cast<int64_t>(vocab.size()) * 4 + (1 << 20);
  TokenId largest = -1;
  for (const auto& [text, id] : vocab) {
    if (id < 0 || id >= limit)
      throw DataError(fmt::format("the token `{}` has the invalid id {}", text, id), where);
    largest = std::max(largest, id);
  }
  std::vector<std::optional<std::string>> texts(static_cast<size_t>(largest) + 1);
  for (const auto& [text, id] : vocab) {
    if (find_invalid_utf8(text) != std::string_view::npos)
      throw DataError(fmt::format("the token {} is not valid UTF-8", id), where);
    texts[static_cast<size_t>(id)] = text;
  }
  return texts;
}

std::string json_string(std::string_view text) {
  return Json(text).dump();
}

std::string json_field(const char* key, const std::string& value) {
  return json_string(key) + ": " + value + ",\n";
}

std::string json_flag(bool value) {
  return value ? "true" : "false";
}

std::string vocab_json(const StringTable& vocab) {
  std::string out;
  for (size_t i = 0; i < vocab.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!vocab.has(id)) continue;
    out += (out.empty() ? "\n" : ",\n") + json_string(vocab.at(id)) + ": " + std::to_string(id);
  }
  return "{" + out + "\n}";
}

}  // namespace sftrun::tokenizer
