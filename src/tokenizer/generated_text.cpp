#include "sftrun/tokenizer/generated_text.h"

#include <algorithm>
#include <span>
#include <utility>

#include "sftrun/core/utf8.h"

namespace sftrun::tokenizer {
namespace {

constexpr std::string_view kReplacementCharacter =
    "\xef\xbf\xbd";  // for bytes that are not a character

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

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return !is_continuation_byte(byte); }));
}

}  // namespace

/// After Knuth, Morris and Pratt.
class StopText {
 public:
  explicit StopText(std::string text) : text_(std::move(text)), borders_(text_.size()) {
    for (size_t i = 1; i < text_.size(); ++i) borders_[i] = next(borders_[i - 1], text_[i]);
  }

  /// Where the text first has it, or npos.
  size_t find(std::string_view text, size_t from) const {
    size_t num_matched = 0;
    for (size_t at = from; at < text.size(); ++at) {
      num_matched = next(num_matched, text[at]);
      if (num_matched == text_.size()) return at + 1 - num_matched;
    }
    return std::string_view::npos;
  }

  /// Number of bytes at the end of `text` that are a proper prefix of it.
  size_t num_begun(std::string_view text) const {
    text.remove_prefix(text.size() - std::min(text.size(), text_.size() - 1));
    size_t num_matched = 0;
    for (const char byte : text) num_matched = next(num_matched, byte);
    return num_matched;
  }

 private:
  /// @param num_matched bytes, fewer than all
  size_t next(size_t num_matched, char byte) const {
    while (num_matched > 0 && text_[num_matched] != byte) num_matched = borders_[num_matched - 1];
    return num_matched + (text_[num_matched] == byte ? 1 : 0);
  }

  std::string text_;
  std::vector<size_t> borders_;  ///< of each prefix: the longest that it begins and ends with
};

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

GeneratedText::GeneratedText(const Tokenizer& tokenizer, const std::vector<std::string>& stop_texts)
    : tokenizer_(tokenizer) {
  std::vector<StopText> texts;
  for (const std::string& text : stop_texts) {
    texts.emplace_back(text);
    longest_stop_ = std::max(longest_stop_, text.size());
  }
  stop_texts_ = std::make_shared<const std::vector<StopText>>(std::move(texts));
}

bool GeneratedText::add(TokenId token) {
  tokens_.push_back(token);
  bytes_.add(tokenizer_.token_bytes(token));
  const std::string after = text_after_kept(tokens_.size());
  text_.resize(num_kept_bytes_);
  text_ += after;
  num_settled_ = std::min(num_settled_, text_.size());
  size_t end = std::string::npos;
  for (const StopText& stop : *stop_texts_) end = std::min(end, stop.find(text_, num_settled_));
  if (end == std::string::npos) {
    settle();
    keep_more();
    return true;
  }
  text_.resize(end);
  num_settled_ = end;
  if (end < num_kept_bytes_) num_kept_bytes_ = num_kept_chars_ = 0;
  return false;
}

size_t GeneratedText::place_of(TokenId next) const {
  std::string_view after = std::string_view(text_).substr(num_kept_bytes_);
  if (bytes_.is_continued_by(tokenizer_.token_bytes(next))) {
    // The incomplete character is one replacement character, or one for each byte token.
    size_t num_parts = num_bytes_at_end() > 0 ? bytes_.num_open_bytes() : 1;
    for (; num_parts > 0 && after.ends_with(kReplacementCharacter); --num_parts)
      after.remove_suffix(kReplacementCharacter.size());
  }
  return num_kept_chars_ + count_chars(after);
}

size_t GeneratedText::num_bytes_at_end() const {
  size_t count = 0;
  while (count < tokens_.size() &&
         is_byte_token(tokenizer_.id_to_token(tokens_[tokens_.size() - 1 - count])))
    ++count;
  return count;
}

std::string GeneratedText::decode(size_t begin, size_t end) {
  num_decoded_ += end - begin;
  return tokenizer_.decode(std::span(tokens_).subspan(begin, end - begin),
                           /*skip_special_tokens=*/true);
}

/// The text of the first tokens, without the kept text.
std::string GeneratedText::text_after_kept(size_t num_tokens) {
  std::string text = decode(first_decoded_, num_tokens);
  if (text.starts_with(decoded_kept_)) return text.substr(decoded_kept_.size());
  first_decoded_ = num_kept_tokens_ = num_kept_bytes_ = num_kept_chars_ = 0;
  decoded_kept_.clear();
  return decode(0, num_tokens);
}

void GeneratedText::settle() {
  const size_t num_bytes = num_bytes_at_end();
  std::string before;
  if (num_bytes > 0) before = text_after_kept(tokens_.size() - num_bytes);
  const size_t begin = num_kept_bytes_ - std::min(num_kept_bytes_, longest_stop_);
  std::string_view settled = std::string_view(text_).substr(begin);
  if (num_bytes > 0) {
    before.insert(0, text_, begin, num_kept_bytes_ - begin);
    settled = before;
  }
  settled = without_parts(settled);
  size_t begun = 0;
  for (const StopText& stop : *stop_texts_) begun = std::max(begun, stop.num_begun(settled));
  settled.remove_suffix(begun);
  if (std::string_view(text_).substr(begin).starts_with(settled))
    num_settled_ = std::max(num_settled_, begin + settled.size());
}

/// Keeps the text of all tokens, if none of it can change and its last tokens have the same text alone.
void GeneratedText::keep_more() {
  constexpr size_t kMaxDecoded = 64, kContext = 8;
  const size_t num_new = tokens_.size() - num_kept_tokens_;
  const bool is_time = num_new >= kMaxDecoded && num_new % kContext == 0;
  if (!is_time || num_bytes_at_end() > 0 || without_parts(text_).size() != text_.size()) return;
  const size_t first = tokens_.size() - kContext;
  std::string again = decode(first, tokens_.size());
  if (again.empty() || !text_.ends_with(again)) return;
  num_kept_chars_ += count_chars(std::string_view(text_).substr(num_kept_bytes_));
  num_kept_bytes_ = text_.size();
  num_kept_tokens_ = tokens_.size();
  first_decoded_ = first;
  decoded_kept_ = std::move(again);
}

}  // namespace sftrun::tokenizer
