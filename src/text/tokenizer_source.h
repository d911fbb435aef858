#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "bpe.h"
#include "sftrun/text/chat_template.h"

namespace sftrun::text {

/// What a tokenizer is made of, whatever file it came from; sections are as in a tokenizer.json
/// (null: none).
struct TokenizerSource {
  BpeSource bpe;
  std::vector<AddedToken> added;  ///< `id` is what the file says
  Json normalizer, pre_tokenizer, post_processor, decoder;
  std::optional<TokenId> bos, eos;
};

/// @throws DataError for what is malformed or of a kind that is not supported
TokenizerSource read_tokenizer_json(std::string_view text, const std::string& where);
/// @throws DataError for a vocabulary that is no byte-level BPE, or an unknown tokenizer.ggml.pre
TokenizerSource read_gguf_vocab(const GgufVocab& vocab, const std::string& where);

}  // namespace sftrun::text
