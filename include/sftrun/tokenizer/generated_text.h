#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/utf8.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// A longer stop text is a mistake, and costs every token of every answer.
inline constexpr size_t kMaxStopBytes = 1000;

/// What ends an answer.
struct Stops {
  std::vector<std::string> texts;
  std::vector<TokenId> tokens;  ///< control tokens, which are no part of the text
};
Stops divide_stops(const Tokenizer& tokenizer, const std::vector<std::string>& stops);

/// A text that is looked for in time that grows with the text that is searched, whatever the two are.
class StopText;

/// The text of generated tokens, up to the first stop text. A stop text may span tokens, and begin
/// or end inside one. Copies share the stop texts. The time of a token does not grow with the number
/// of those before it, except in a run of bytes that are no characters.
class GeneratedText {
 public:
  /// @param stop_texts not empty strings   @param tokenizer must outlive this object
  GeneratedText(const Tokenizer& tokenizer, const std::vector<std::string>& stop_texts);

  /// @return false: a stop text is complete; no more tokens may be added
  bool add(TokenId token);

  /// The text that later tokens cannot change: without an incomplete character at the end, and
  /// without a possible beginning of a stop text. It never becomes shorter.
  std::string_view settled() const { return std::string_view(text_).substr(0, num_settled_); }
  /// The complete text, without the stop text.
  const std::string& text() const { return text_; }
  /// Where the text of another token would begin, in characters: the parts of a character are all at
  /// the place of the character.
  size_t place_of(TokenId next) const;
  /// Tokens that were decoded so far, each as often as it was.
  uint64_t num_decoded() const { return num_decoded_; }

 private:
  std::string decode(size_t begin, size_t end);
  std::string text_after_kept(size_t num_tokens);
  void settle();
  void keep_more();
  size_t num_bytes_at_end() const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const std::vector<StopText>> stop_texts_;
  size_t longest_stop_ = 0;
  std::vector<TokenId> tokens_;
  std::string text_;
  CharacterStream bytes_;  ///< of the tokens
  size_t num_settled_ = 0;
  uint64_t num_decoded_ = 0;

  // The beginning of the text that is decoded no more. The text of a token depends on its neighbours: a few tokens before
  // the next ones are decoded with them.
  size_t num_kept_tokens_ = 0, num_kept_bytes_ = 0, num_kept_chars_ = 0;
  size_t first_decoded_ = 0;  ///< token
  std::string decoded_kept_;  ///< text of the kept ones that are decoded again
};

}  // namespace sftrun::tokenizer
