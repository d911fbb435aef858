#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "added_tokens.h"
#include "bpe.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "unigram.h"
#include "word_piece.h"

namespace sftrun::tokenizer {

using ModelSource = std::variant<BpeSource, UnigramSource, WordPieceSource, WordLevelSource>;

/// Of transformers 5, where it splits texts otherwise than the file.
struct OtherClass {
  Json normalizer, pre_tokenizer;
  ClassDifference difference;
};

/// The parts of a tokenizer, from any file format; sections are as in a tokenizer.json (null:
/// none).
struct TokenizerSource {
  ModelSource model;
  std::vector<AddedToken> added;  ///< `id` is what the file says
  Json normalizer, pre_tokenizer, post_processor, decoder;
  /// Kept only for writing; encoding neither truncates nor pads.
  Json truncation, padding;
  std::optional<TokenId> bos, eos;
  std::optional<OtherClass> other_class;
};

/// @throws DataError for malformed files
TokenizerSource read_tokenizer_json(std::string_view text, const std::string& where);
/// @throws DataError for an unknown tokenizer.ggml.model or tokenizer.ggml.pre
TokenizerSource read_gguf_vocab(GgufVocab vocab, const std::string& where);

}  // namespace sftrun::tokenizer
