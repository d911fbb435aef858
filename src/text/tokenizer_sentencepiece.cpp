#include <algorithm>

#include "base64.h"
#include "rank_merges.h"
#include "sections.h"
#include "tokenizer_files.h"

namespace sftrun::text {
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

/// Of a trained model the order of ids is that of the scores.
BpeSource bpe_of(const SentencePieceModel& model) {
  BpeSource source;
  std::vector<RankedToken> tokens;
  for (const auto& piece : model.pieces) {
    const auto id = static_cast<TokenId>(tokens.size());
    source.vocab.emplace_back(piece.text, id);
    tokens.push_back({piece.text, id, static_cast<double>(id)});
  }
  source.merges = merges_by_rank(tokens, MergeTies::kShortLeftFirst, false);
  source.options.byte_fallback = model.byte_fallback;
  source.options.fuse_unk = true;
  if (model.unk) source.options.unk_token = model.pieces[static_cast<size_t>(*model.unk)].text;
  return source;
}

/// A piece that holds a space within it, and so can cover two words.
bool has_piece_of_words(const SentencePieceModel& model) {
  return std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == Type::kNormal && piece.text.find(kVisibleSpace, 1) != std::string::npos;
  });
}

Json normalizer_of(const SentencePieceModel& model, bool writes_spaces) {
  std::vector<Json> steps;
  if (!model.charsmap.empty()) {
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    steps.push_back({{"type", "Strip"}, {"strip_left", !model.add_dummy_prefix}, {"strip_right", true}});
    steps.push_back(
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", kVisibleSpace}});
  }
  if (writes_spaces) steps.push_back(replace_section(" ", kVisibleSpace));
  return sequence_section("normalizers", std::move(steps));
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

}  // namespace

TokenizerSource source_from_sentencepiece(const SentencePieceModel& model,
                                          const TokenizerConfig& config) {
  TokenizerSource source;
  const bool prefixes = config.flag("add_prefix_space").value_or(model.add_dummy_prefix);
  if (model.is_unigram) {
    source.model = unigram_of(model);
    source.pre_tokenizer = metaspace_section(prefixes ? "always" : "never",
                                             model.remove_extra_whitespaces && !has_piece_of_words(model));
    source.normalizer = normalizer_of(model, false);
  } else {
    source.model = bpe_of(model);
    // Llama's: one space before a text, or (legacy) before each stretch between special tokens.
    const bool legacy = config.flag("legacy").value_or(false);
    if (prefixes) source.pre_tokenizer = metaspace_section(legacy ? "always" : "first", false);
    source.normalizer = normalizer_of(model, !prefixes);
  }
  source.decoder = pieces_decoder_section(prefixes);
  add_model_tokens(model, source);
  const auto text_of = [&](std::optional<TokenId> id) -> std::optional<NamedToken> {
    if (!id) return std::nullopt;
    return NamedToken{model.pieces[static_cast<size_t>(*id)].text, *id};
  };
  source.bos = model.bos;
  source.eos = model.eos;
  source.post_processor =
      template_section(config.flag("add_bos_token").value_or(false) ? text_of(model.bos) : std::nullopt,
                       config.flag("add_eos_token").value_or(false) ? text_of(model.eos) : std::nullopt);
  return source;
}

}  // namespace sftrun::text
