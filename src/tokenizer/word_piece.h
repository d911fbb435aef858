#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model.h"

namespace sftrun::tokenizer {

struct WordPieceSource {
  std::vector<std::pair<std::string, TokenId>> vocab;
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";  ///< before tokens that do not begin a word
  size_t max_input_chars_per_word = 100;         ///< longer words are unknown
};

/// Greedy longest match from the start of the word, as in BERT. A word that cannot be covered
/// becomes one unknown token.
class WordPiece final : public Model {
 public:
  /// @throws DataError
  WordPiece(const WordPieceSource& source, const std::string& where);

  void encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const override;
  const StringTable& vocab() const override { return texts_; }
  std::string_view unk_token() const override { return source_.unk_token; }
  void write_json(std::string& out) const override;

 private:
  Symbol longest_at(std::string_view word, uint32_t begin, std::string& text) const;

  WordPieceSource source_;  ///< without its vocabulary
  StringTable texts_;
  size_t longest_ = 0;  ///< bytes of the longest token
};

struct WordLevelSource {
  std::vector<std::pair<std::string, TokenId>> vocab;
  std::string unk_token = "<unk>";
};

/// Each word is one token, or unknown.
class WordLevel final : public Model {
 public:
  /// @throws DataError
  WordLevel(const WordLevelSource& source, const std::string& where);

  void encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const override;
  const StringTable& vocab() const override { return texts_; }
  std::string_view unk_token() const override { return unk_token_; }
  void write_json(std::string& out) const override;

 private:
  StringTable texts_;
  std::string unk_token_;
};

}  // namespace sftrun::tokenizer
