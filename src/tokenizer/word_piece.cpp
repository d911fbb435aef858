#include "word_piece.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

Symbol whole_word(std::string_view word, const StringTable& texts, const std::string& token) {
  const auto id = texts.find(token);
  if (!id) {
    throw DataError(fmt::format(
        "the text needs the tokenizer's unk_token `{}`, which is not in its vocabulary", token));
  }
  return {*id, 0, static_cast<uint32_t>(word.size())};
}

}  // namespace

WordPiece::WordPiece(const WordPieceSource& source, const std::string& where)
    : source_(source), texts_(texts_by_id(source.vocab, where)) {
  for (const auto& [text, id] : source.vocab) longest_ = std::max(longest_, text.size());
  source_.vocab.clear();
}

void WordPiece::encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const {
  out.clear();
  const auto num_chars =
      std::count_if(word.begin(), word.end(), [](char c) { return !is_continuation_byte(c); });
  bool covered = static_cast<size_t>(num_chars) <= source_.max_input_chars_per_word;
  for (uint32_t begin = 0; covered && begin < word.size(); begin = out.back().end) {
    const Symbol token = longest_at(word, begin, scratch.text);
    covered = token.id >= 0;
    if (covered) out.push_back(token);
  }
  if (!covered) out.assign(1, whole_word(word, texts_, source_.unk_token));
}

/// id -1: none.
Symbol WordPiece::longest_at(std::string_view word, uint32_t begin, std::string& text) const {
  const std::string_view prefix =
      begin == 0 ? std::string_view() : source_.continuing_subword_prefix;
  const std::string_view rest = word.substr(begin, longest_);
  text.assign(prefix).append(rest);
  for (size_t length = rest.size(); length > 0; --length) {
    const bool ends_char =
        begin + length == word.size() || !is_continuation_byte(word[begin + length]);
    if (!ends_char) continue;
    const auto id = texts_.find(std::string_view(text).substr(0, prefix.size() + length));
    if (id) return {*id, begin, static_cast<uint32_t>(begin + length)};
  }
  return {};
}

void WordPiece::write_json(std::string& out) const {
  out += json_field("type", "\"WordPiece\"");
  out += json_field("unk_token", json_string(source_.unk_token));
  out += json_field("continuing_subword_prefix", json_string(source_.continuing_subword_prefix));
  out += json_field("max_input_chars_per_word", std::to_string(source_.max_input_chars_per_word));
  out += "\"vocab\": " + vocab_json(texts_);
}

WordLevel::WordLevel(const WordLevelSource& source, const std::string& where)
    : texts_(texts_by_id(source.vocab, where)), unk_token_(source.unk_token) {}

void WordLevel::encode(std::string_view word, Scratch&, std::vector<Symbol>& out) const {
  const auto id = texts_.find(word);
  out.assign(1, id ? Symbol{*id, 0, static_cast<uint32_t>(word.size())}
                   : whole_word(word, texts_, unk_token_));
}

void WordLevel::write_json(std::string& out) const {
  out += json_field("type", "\"WordLevel\"");
  out += json_field("unk_token", json_string(unk_token_));
  out += "\"vocab\": " + vocab_json(texts_);
}

}  // namespace sftrun::tokenizer
