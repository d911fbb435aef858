#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/tokenizer.h"

namespace sftrun::text {

/// The text of tokens as a model generates them, up to the first stop text. A stop text may span
/// tokens and begin or end inside one.
class GeneratedText {
 public:
  /// @param stop_texts none empty   @param tokenizer outlives this
  GeneratedText(const Tokenizer& tokenizer, std::vector<std::string> stop_texts);

  /// @return false: a stop text is complete, and nothing may follow
  bool add(TokenId token);

  /// What later tokens do not change: without part of a character at the end, and without what a
  /// stop text may begin with. Never shorter than before.
  std::string_view settled() const { return std::string_view(text_).substr(0, num_settled_); }
  /// All of it, without the stop text.
  const std::string& text() const { return text_; }

 private:
  void settle();
  size_t num_bytes_at_end() const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_texts_;
  std::vector<TokenId> tokens_;
  std::string text_;
  size_t num_settled_ = 0;
};

}  // namespace sftrun::text
