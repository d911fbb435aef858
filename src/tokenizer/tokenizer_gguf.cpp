#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "gguf_pre_tokenizers.h"
#include "gguf_token_types.h"
#include "sections.h"
#include "sentencepiece_model.h"
#include "sftrun/core/error.h"
#include "tokenizer_files.h"

namespace sftrun::tokenizer {
namespace {

int32_t type_of(const GgufVocab& vocab, size_t i) {
  return vocab.token_types.empty() ? gguf::kNormal : vocab.token_types[i];
}

void check_ids(const GgufVocab& vocab, const std::string& where) {
  for (const auto& [name, id] :
       {std::pair{"bos", vocab.bos}, {"eos", vocab.eos}, {"unknown", vocab.unk}}) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= vocab.tokens.size())) {
      throw DataError(fmt::format("tokenizer.ggml.{}_token_id is {}, but there are {} tokens", name,
                                  *id, vocab.tokens.size()),
                      where);
    }
  }
  if (!vocab.token_types.empty() && vocab.token_types.size() != vocab.tokens.size()) {
    throw DataError(fmt::format("the GGUF file has {} tokens but {} token types",
                                vocab.tokens.size(), vocab.token_types.size()),
                    where);
  }
}

std::pair<std::string, std::string> split_merge(const std::string& merge, size_t number,
                                                const std::string& where) {
  const size_t space =
      merge.find(' ', 1);  // visible text has no space; a merge never starts with one
  if (space == std::string::npos || space + 1 == merge.size()) {
    throw DataError(fmt::format("merge {} (`{}`) is not a pair of tokens", number, merge), where);
  }
  return {merge.substr(0, space), merge.substr(space + 1)};
}

/// Tokens that are recognised in a text.
std::vector<AddedToken> added_tokens(const GgufVocab& vocab) {
  std::vector<AddedToken> out;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const int32_t type = type_of(vocab, i);
    if (type != gguf::kControl && type != gguf::kUserDefined) continue;
    out.push_back({.id = static_cast<TokenId>(i),
                   .content = vocab.tokens[i],
                   .special = type == gguf::kControl});
  }
  return out;
}

/// Writes user-defined runs of spaces as in SentencePiece and tokenizer.json ("▁▁" in Gemma).
/// convert_hf_to_gguf.py stores them as spaces, because llama.cpp searches user-defined tokens
/// before it replaces spaces by "▁"; with that name a literal "▁▁" in a text would not become the
/// token. A run whose visible spelling is another token keeps its name.
void restore_visible_spaces(GgufVocab& vocab) {
  const std::unordered_set<std::string_view> known(vocab.tokens.begin(), vocab.tokens.end());
  std::vector<std::pair<size_t, std::string>> restored;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const std::string& token = vocab.tokens[i];
    const bool is_run = !token.empty() && token.find_first_not_of(' ') == std::string::npos;
    if (!is_run || type_of(vocab, i) != gguf::kUserDefined) continue;
    std::string visible;
    for (size_t count = 0; count < token.size(); ++count) visible += kVisibleSpace;
    if (!known.contains(visible)) restored.emplace_back(i, std::move(visible));
  }
  for (auto& [i, visible] : restored) vocab.tokens[i] = std::move(visible);
}

BpeSource bpe_of_vocab(const GgufVocab& vocab) {
  BpeSource bpe;
  for (size_t i = 0; i < vocab.tokens.size(); ++i)
    bpe.vocab.emplace_back(vocab.tokens[i], static_cast<TokenId>(i));
  return bpe;
}

void read_merges(const GgufVocab& vocab, BpeSource& bpe, const std::string& where) {
  for (size_t i = 0; i < vocab.merges.size(); ++i)
    bpe.merges.push_back(split_merge(vocab.merges[i], i + 1, where));
}

/// gpt2: BPE of bytes.
void read_bytes(const GgufVocab& vocab, TokenizerSource& source, const std::string& where) {
  GgufPreTokenizer kind = gguf_pre_tokenizer(vocab.pre, where);
  BpeSource bpe = bpe_of_vocab(vocab);
  read_merges(vocab, bpe, where);
  bpe.options.ignore_merges = kind.ignore_merges;
  source.model = std::move(bpe);
  source.normalizer = std::move(kind.normalizer);
  source.pre_tokenizer = std::move(kind.pre_tokenizer);
  source.decoder = byte_level_section(true);
}

void read_options_of_pieces(const GgufVocab& vocab, BpeSource& bpe) {
  bpe.options.byte_fallback = true;
  bpe.options.fuse_unk = true;
  if (vocab.unk) bpe.options.unk_token = vocab.tokens[static_cast<size_t>(*vocab.unk)];
}

/// gemma4: BPE of characters with the merges in the file, spaces visible.
void read_merged_pieces(const GgufVocab& vocab, TokenizerSource& source, const std::string& where) {
  BpeSource bpe = bpe_of_vocab(vocab);
  read_merges(vocab, bpe, where);
  read_options_of_pieces(vocab, bpe);
  source.model = std::move(bpe);
  source.normalizer = replace_section(" ", kVisibleSpace);
  source.decoder = pieces_decoder_section(false);
}

void check_scores(const GgufVocab& vocab, const std::string& where) {
  if (vocab.scores.size() != vocab.tokens.size()) {
    throw DataError(fmt::format("the GGUF file has {} tokens but {} scores (tokenizer.ggml.scores)",
                                vocab.tokens.size(), vocab.scores.size()),
                    where);
  }
  const auto odd = std::find_if_not(vocab.scores.begin(), vocab.scores.end(),
                                    [](float score) { return std::isfinite(score); });
  if (odd != vocab.scores.end()) {
    throw DataError(fmt::format("the score of token {} is NaN or infinite (tokenizer.ggml.scores)",
                                odd - vocab.scores.begin()),
                    where);
  }
}

/// llama and t5: SentencePiece's BPE and Unigram.
void read_sentencepiece(const GgufVocab& vocab, bool is_unigram, TokenizerSource& source,
                        const std::string& where) {
  check_scores(vocab, where);
  SentencePieceModel model;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    model.pieces.push_back({vocab.tokens[i], vocab.scores[i],
                            static_cast<SentencePieceModel::Type>(type_of(vocab, i))});
  }
  model.is_unigram = is_unigram;
  model.byte_fallback = !is_unigram;
  model.unk = vocab.unk;
  model.charsmap = vocab.precompiled_charsmap;
  model.add_dummy_prefix = vocab.add_space_prefix;
  model.remove_extra_whitespaces = is_unigram && vocab.remove_extra_whitespaces;
  TokenizerConfig config;
  config.config = {{"legacy", true}};  // llama.cpp adds a space after special tokens, too
  TokenizerSource made = source_from_sentencepiece(model, config);
  source.model = std::move(made.model);
  source.normalizer = std::move(made.normalizer);
  source.pre_tokenizer = std::move(made.pre_tokenizer);
  source.decoder = std::move(made.decoder);
}

std::optional<NamedToken> named(const GgufVocab& vocab, bool wanted, std::optional<TokenId> id) {
  if (!wanted || !id) return std::nullopt;
  return NamedToken{vocab.tokens[static_cast<size_t>(*id)], *id};
}

}  // namespace

TokenizerSource read_gguf_vocab(GgufVocab vocab, const std::string& where) {
  if (vocab.tokens.empty())
    throw DataError("the GGUF file has no tokens (tokenizer.ggml.tokens)", where);
  check_ids(vocab, where);
  TokenizerSource source;
  if (vocab.model == "gpt2") {
    read_bytes(vocab, source, where);
  } else if (vocab.model == "llama") {
    restore_visible_spaces(vocab);
    read_sentencepiece(vocab, false, source, where);
  } else if (vocab.model == "gemma4") {
    read_merged_pieces(vocab, source, where);
  } else if (vocab.model == "t5") {
    read_sentencepiece(vocab, true, source, where);
  } else {
    throw DataError(fmt::format("the GGUF tokenizer model `{}` is not supported", vocab.model),
                    where,
                    "supported values of tokenizer.ggml.model: gpt2 (byte-level BPE), llama and t5 "
                    "(SentencePiece), gemma4");
  }
  source.added = added_tokens(vocab);
  source.post_processor = template_section(named(vocab, vocab.add_bos, vocab.bos),
                                           named(vocab, vocab.add_eos, vocab.eos));
  source.bos = vocab.bos;
  source.eos = vocab.eos;
  return source;
}

}  // namespace sftrun::tokenizer
