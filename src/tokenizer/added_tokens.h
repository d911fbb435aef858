#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  ///< only if no word character is next to it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  bool normalized = false;   ///< searched in the normalised text, in normalised form
  bool special = false;
  /// For a token that occurs twice with different flags, the library decodes with flags that were
  /// set in either entry: special tokens are left out on request, normalised ones are written in
  /// their normalised form.
  bool was_special = false, was_normalized = false;
};

/// Finds the longest of a set of strings at each place, from left to right.
class StringSet {
 public:
  void add(std::string_view text, TokenId id);
  struct Match {
    uint32_t begin, end;
    TokenId id;
  };
  /// The first match at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    TokenId id = -1;
  };
  const uint32_t* child(uint32_t node, char c) const;
  std::vector<Node> nodes_{1};
  std::bitset<256> first_bytes_;
};

/// The added vocabulary. Immutable.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// @param normalize returns the text to search for, from the content of a `normalized` token
  template <class Normalize>
  AddedTokens(std::vector<AddedToken> tokens, Normalize&& normalize) : tokens_(std::move(tokens)) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      index(i, tokens_[i].normalized ? normalize(tokens_[i].content) : tokens_[i].content);
    }
  }

  /// A part of the text: a token, or (id empty) text between tokens.
  struct Stretch {
    uint32_t begin, end;
    std::optional<TokenId> id;
  };
  /// Tokens that are searched in the original text, or (`normalized`) in normalised text.
  std::vector<Stretch> split(std::string_view text, bool normalized) const;
  bool has_any(bool normalized) const { return !sets_[normalized].empty(); }

  const AddedToken* find(TokenId id) const;
  const AddedToken* find(std::string_view content) const;
  const std::vector<AddedToken>& all() const { return tokens_; }  ///< in order of id

 private:
  void index(size_t position, const std::string& sought);

  std::vector<AddedToken> tokens_;
  StringSet sets_[2];
  std::unordered_map<TokenId, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
};

}  // namespace sftrun::tokenizer
