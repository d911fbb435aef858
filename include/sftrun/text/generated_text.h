#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/tokenizer.h"

namespace sftrun::text {

/// What ends an answer.
struct Stops {
  std::vector<std::string> texts;
  std::vector<TokenId> tokens;  ///< control tokens, which are no part of the text
};
Stops divide_stops(const Tokenizer& tokenizer, const std::vector<std::string>& stops);

/// The text of generated tokens, up to the first stop text. A stop text may span tokens, and begin
/// or end inside one. Copies share the stop texts, which may be long.
class GeneratedText {
 public:
  /// @param stop_texts not empty strings   @param tokenizer must outlive this object
  GeneratedText(const Tokenizer& tokenizer, std::vector<std::string> stop_texts);

  /// @return false: a stop text is complete; no more tokens may be added
  bool add(TokenId token);

  /// The text that later tokens cannot change: without an incomplete character at the end, and
  /// without a possible beginning of a stop text. It never becomes shorter.
  std::string_view settled() const { return std::string_view(text_).substr(0, num_settled_); }
  /// The complete text, without the stop text.
  const std::string& text() const { return text_; }
  /// Characters of it, without the parts of one at the end.
  size_t num_chars() const;

 private:
  void settle();
  size_t num_bytes_at_end() const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const std::vector<std::string>> stop_texts_;
  std::vector<TokenId> tokens_;
  std::string text_;
  size_t num_settled_ = 0;
};

}  // namespace sftrun::text
