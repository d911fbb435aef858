#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "added_tokens.h"
#include "bpe.h"
#include "sftrun/text/chat_template.h"
#include "unigram.h"
#include "word_piece.h"

namespace sftrun::text {

using ModelSource = std::variant<BpeSource, UnigramSource, WordPieceSource, WordLevelSource>;

/// What a tokenizer is made of, whatever file it came from; sections are as in a tokenizer.json
/// (null: none).
struct TokenizerSource {
  ModelSource model;
  std::vector<AddedToken> added;  ///< `id` is what the file says
  Json normalizer, pre_tokenizer, post_processor, decoder;
  /// Kept for who reads the written file; encoding does neither, as transformers' plain calls do
  /// not.
  Json truncation, padding;
  std::optional<TokenId> bos, eos;
};

/// @throws DataError for what is malformed
TokenizerSource read_tokenizer_json(std::string_view text, const std::string& where);
/// @throws DataError for a vocabulary of an unknown kind, or an unknown tokenizer.ggml.pre
TokenizerSource read_gguf_vocab(GgufVocab vocab, const std::string& where);

}  // namespace sftrun::text
