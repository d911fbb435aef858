#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"
#include "vocabulary.h"

namespace sftrun::tokenizer {

/// A token and the bytes of the word that it covers.
struct Symbol {
  TokenId id = -1;
  uint32_t begin = 0, end = 0;
};

/// Buffers of a model for one word; for one thread at a time.
struct Scratch {
  struct PathNode {
    double score = 0;
    uint32_t begin = UINT32_MAX;  ///< start of the token that ends here; UINT32_MAX: none
    TokenId id = -1;
  };
  std::vector<uint64_t> merges;  ///< BPE: merge of each symbol with the next
  std::vector<PathNode> path;    ///< Unigram: the best segmentation up to every byte
  std::string text;              ///< WordPiece: prefix and rest
};

/// The `model` of a tokenizer: words to tokens. Immutable; const methods are safe to call from
/// several threads.
class Model {
 public:
  virtual ~Model() = default;
  /// @param word not empty; bytes if `takes_bytes`, else valid UTF-8
  /// @param[out] out replaced: the word's tokens, in order
  /// @throws DataError if the model has neither tokens for the word nor an unknown token
  virtual void encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const = 0;
  /// Words are raw bytes, not GPT-2's visible characters.
  virtual bool takes_bytes() const { return false; }
  virtual const StringTable& vocab() const = 0;  ///< texts as in the files
  /// Number of tokens as counted by the library; added tokens have the ids after them.
  virtual size_t num_tokens() const { return vocab().count(); }
  /// The text of the unknown token; empty if the model has none.
  virtual std::string_view unk_token() const = 0;
  /// Appends the `model` section of a tokenizer.json.
  virtual void write_json(std::string& out) const = 0;
};

/// Texts of an id-indexed table, from pairs in any order.
/// @throws DataError for invalid ids and texts that are not UTF-8
std::vector<std::optional<std::string>> texts_by_id(
    const std::vector<std::pair<std::string, TokenId>>& vocab, const std::string& where);

/// For `write_json`: `"key": value,` on a line; a JSON string; "true" or "false"; the vocabulary as
/// an object.
std::string json_field(const char* key, const std::string& value);
std::string json_string(std::string_view text);
std::string json_flag(bool value);
std::string vocab_json(const StringTable& vocab);

}  // namespace sftrun::tokenizer
