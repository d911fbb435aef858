#include "sftrun/text/generated_text.h"

#include <algorithm>
#include <span>
#include <utility>

#include "sftrun/core/utf8.h"

namespace sftrun::text {
namespace {

constexpr std::string_view kReplacementCharacter =
    "\xef\xbf\xbd";  // for bytes that are not a character

/// Number of bytes at the end of `text` that are a proper prefix of `stop`.
size_t num_begun(std::string_view text, std::string_view stop) {
  size_t count = std::min(text.size(), stop.size() - 1);
  while (count > 0 && !text.ends_with(stop.substr(0, count))) --count;
  return count;
}

/// Without parts of a character at the end.
std::string_view without_parts(std::string_view text) {
  while (text.ends_with(kReplacementCharacter)) text.remove_suffix(kReplacementCharacter.size());
  return text;
}

/// SentencePiece's byte token, such as <0xE2>: if a run of them is not UTF-8, every byte is
/// replaced, so none is final before the run ends.
bool is_byte_token(std::string_view token) {
  constexpr size_t kSize = 6;
  return token.size() == kSize && token.starts_with("<0x") && token.ends_with('>');
}

}  // namespace

Stops divide_stops(const Tokenizer& tokenizer, const std::vector<std::string>& stops) {
  Stops divided;
  for (const std::string& stop : stops) {
    const auto token = tokenizer.token_to_id(stop);
    if (token && tokenizer.is_special(*token))
      divided.tokens.push_back(*token);
    else
      divided.texts.push_back(stop);
  }
  return divided;
}

GeneratedText::GeneratedText(const Tokenizer& tokenizer, std::vector<std::string> stop_texts)
    : tokenizer_(tokenizer),
      stop_texts_(std::make_shared<const std::vector<std::string>>(std::move(stop_texts))) {}

bool GeneratedText::add(TokenId token) {
  tokens_.push_back(token);
  // All tokens together, because the text of a token depends on its neighbours.
  text_ = tokenizer_.decode(tokens_, /*skip_special_tokens=*/true);
  num_settled_ = std::min(num_settled_, text_.size());
  size_t end = std::string::npos;
  for (const std::string& stop : *stop_texts_) end = std::min(end, text_.find(stop, num_settled_));
  if (end == std::string::npos) {
    settle();
    return true;
  }
  text_.resize(end);
  num_settled_ = end;
  return false;
}

size_t GeneratedText::num_chars() const {
  const std::string_view complete = without_parts(text_);
  return static_cast<size_t>(std::count_if(complete.begin(), complete.end(),
                                           [](char byte) { return !is_continuation_byte(byte); }));
}

size_t GeneratedText::num_bytes_at_end() const {
  size_t count = 0;
  while (count < tokens_.size() &&
         is_byte_token(tokenizer_.id_to_token(tokens_[tokens_.size() - 1 - count])))
    ++count;
  return count;
}

void GeneratedText::settle() {
  std::string before;
  std::string_view settled = text_;
  if (const size_t num_bytes = num_bytes_at_end(); num_bytes > 0) {
    before = tokenizer_.decode(std::span(tokens_).first(tokens_.size() - num_bytes),
                               /*skip_special_tokens=*/true);
    settled = before;
  }
  settled = without_parts(settled);
  size_t begun = 0;
  for (const std::string& stop : *stop_texts_) begun = std::max(begun, num_begun(settled, stop));
  settled.remove_suffix(begun);
  if (text_.starts_with(settled)) num_settled_ = std::max(num_settled_, settled.size());
}

}  // namespace sftrun::text
