#include <algorithm>
#include <limits>

#include "rank_merges.h"
#include "sections.h"
#include "sftrun/core/base64.h"
#include "tokenizer_files.h"

namespace sftrun::tokenizer {
namespace {

using Type = SentencePieceModel::Type;

UnigramSource unigram_of(const SentencePieceModel& model) {
  UnigramSource source;
  source.pieces.reserve(model.pieces.size());
  for (const auto& piece : model.pieces) source.pieces.emplace_back(piece.text, piece.score);
  source.unk_id = model.unk;
  source.byte_fallback = model.byte_fallback;
  return source;
}

bool is_mergeable(Type type) {
  return type == Type::kNormal || type == Type::kUserDefined;
}

/// Merges of user-defined pieces come before all others, independent of their score: SentencePiece
/// first matches the longest of them at each position.
double priority_of(const SentencePieceModel::Piece& piece) {
  if (piece.type == Type::kUserDefined) return -std::numeric_limits<double>::infinity();
  return -static_cast<double>(piece.score);
}

BpeSource bpe_of(const SentencePieceModel& model) {
  BpeSource source;
  std::vector<RankedToken> tokens;
  for (const auto& piece : model.pieces) {
    const auto id = static_cast<TokenId>(source.vocab.size());
    source.vocab.emplace_back(piece.text, id);
    if (is_mergeable(piece.type)) tokens.push_back({piece.text, id, priority_of(piece)});
  }
  source.merges = merges_by_rank(tokens, MergeTies::kLongLeftFirst, false);
  source.options.byte_fallback = model.byte_fallback;
  source.options.fuse_unk = true;
  if (model.unk) source.options.unk_token = model.pieces[static_cast<size_t>(*model.unk)].text;
  return source;
}

/// Whether a piece contains a space after its first character, and so can span two words.
bool has_piece_of_words(const SentencePieceModel& model) {
  return std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == Type::kNormal && piece.text.find(kVisibleSpace, 1) != std::string::npos;
  });
}

/// SentencePiece's normalisation of a text, without the replacement of spaces.
std::vector<Json> cleaning_steps(const SentencePieceModel& model) {
  std::vector<Json> steps;
  if (!model.charsmap.empty()) {
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    steps.push_back(
        {{"type", "Strip"}, {"strip_left", !model.add_dummy_prefix}, {"strip_right", true}});
    steps.push_back(
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", kVisibleSpace}});
  }
  return steps;
}

Json metaspace_section(const char* scheme, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", kVisibleSpace},
          {"prepend_scheme", scheme},
          {"split", split}};
}

void add_model_tokens(const SentencePieceModel& model, TokenizerSource& source) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    const auto id = static_cast<TokenId>(i);
    const bool special = piece.type == Type::kControl || model.unk == id;
    if (special || piece.type == Type::kUserDefined)
      source.added.push_back({.id = id, .content = piece.text, .special = special});
  }
}

/// Unigram, as in transformers' converters. Words are split if no piece spans two of them, which is
/// faster and gives the same tokens.
void read_unigram(const SentencePieceModel& model, bool prefixes, TokenizerSource& source) {
  source.model = unigram_of(model);
  source.normalizer = sequence_section("normalizers", cleaning_steps(model));
  const bool apart = model.remove_extra_whitespaces && !has_piece_of_words(model);
  source.pre_tokenizer = metaspace_section(prefixes ? "always" : "never", apart);
}

/// BPE, as in Llama's tokenizers. One space is added before a text; with `legacy` (transformers'
/// first behaviour) before each stretch between special tokens, even if it begins with a space.
void read_bpe(const SentencePieceModel& model, bool prefixes, bool legacy,
              TokenizerSource& source) {
  source.model = bpe_of(model);
  std::vector<Json> steps = cleaning_steps(model);
  if (prefixes && !legacy) {
    source.pre_tokenizer = metaspace_section("first", false);
  } else {
    if (prefixes) steps.push_back({{"type", "Prepend"}, {"prepend", kVisibleSpace}});
    steps.push_back(replace_section(" ", kVisibleSpace));
  }
  source.normalizer = sequence_section("normalizers", std::move(steps));
}

std::optional<NamedToken> named(const SentencePieceModel& model, bool wanted,
                                std::optional<TokenId> id) {
  if (!wanted || !id) return std::nullopt;
  return NamedToken{model.pieces[static_cast<size_t>(*id)].text, *id};
}

}  // namespace

TokenizerSource source_from_sentencepiece(const SentencePieceModel& model,
                                          const TokenizerConfig& config) {
  TokenizerSource source;
  const bool prefixes = config.flag("add_prefix_space").value_or(model.add_dummy_prefix);
  if (model.is_unigram) {
    read_unigram(model, prefixes, source);
  } else {
    read_bpe(model, prefixes, config.flag("legacy").value_or(false), source);
  }
  source.decoder = pieces_decoder_section(prefixes);
  add_model_tokens(model, source);
  source.bos = model.bos;
  source.eos = model.eos;
  source.post_processor =
      template_section(named(model, config.flag("add_bos_token").value_or(false), model.bos),
                       named(model, config.flag("add_eos_token").value_or(false), model.eos));
  return source;
}

}  // namespace sftrun::tokenizer
