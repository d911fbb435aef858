#include "token_places.h"

#include <algorithm>

#include "sftrun/core/utf8.h"

namespace sftrun::serve {
namespace {

/// At most the first `count` characters.
std::string_view first_chars(std::string_view text, size_t count) {
  size_t end = 0;
  for (; count > 0 && end < text.size(); --count) {
    do ++end;
    while (end < text.size() && is_continuation_byte(text[end]));
  }
  return text.substr(0, end);
}

/// A place in a text that moves on token by token.
class PlaceInText {
 public:
  explicit PlaceInText(std::string_view text) : left_(text) {}

  size_t num_before() const { return num_before_; }

  /// @param begun the characters that begin in the token
  void pass(std::string_view begun, bool is_special) {
    const size_t count = num_chars(begun);
    if (left_.starts_with(begun)) {
      skip(count);
    } else if (begun.starts_with(' ') && left_.starts_with(begun.substr(1))) {
      skip(count - 1);  // SentencePiece's, before the first word
    } else if (!is_special) {
      skip(count);  // the tokenizer has changed the text
    }
  }

 private:
  void skip(size_t count) {
    const std::string_view skipped = first_chars(left_, count);
    num_before_ += num_chars(skipped);
    left_.remove_prefix(skipped.size());
  }

  std::string_view left_;
  size_t num_before_ = 0;
};

}  // namespace

size_t num_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char byte) { return !is_continuation_byte(byte); }));
}

std::vector<size_t> places_in_text(const std::vector<TextToken>& tokens, std::string_view text) {
  std::string bytes;
  for (const TextToken& token : tokens) bytes += token.bytes;
  const std::string decoded = utf8_lossy(bytes);
  std::string_view not_begun = decoded;  // characters that begin in later tokens
  CharacterStream characters;            // of the tokens before
  PlaceInText place(text);
  std::vector<size_t> places;
  for (const TextToken& token : tokens) {
    const bool is_part = characters.is_continued_by(token.bytes);
    places.push_back(place.num_before() - (is_part && place.num_before() > 0 ? 1 : 0));
    const size_t num_before = characters.num_chars();
    characters.add(token.bytes);
    const std::string_view begun = first_chars(not_begun, characters.num_chars() - num_before);
    not_begun.remove_prefix(begun.size());
    place.pass(begun, token.is_special);
  }
  return places;
}

}  // namespace sftrun::serve
