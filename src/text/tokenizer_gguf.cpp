#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <unordered_map>

#include "pre_tokenizer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "splitters.h"
#include "tokenizer_source.h"

namespace sftrun::text {
namespace {

/// A GGUF file names its pre-tokenizer. The meaning is that of the model the name was taken from
/// (its tokenizer.json, with NFC where that has it), and llama.cpp's (src/llama-vocab.cpp) for
/// names that several models share.
struct PreTokenizerKind {
  std::string_view name;
  enum class Form : uint8_t { kGpt2, kDigitsGpt2, kLlama3, kQwen2 } form;
  bool nfc = false, ignore_merges = false;
};
using Form = PreTokenizerKind::Form;

constexpr std::array kKinds = {
    PreTokenizerKind{"gpt-2", Form::kGpt2},
    PreTokenizerKind{"phi-2", Form::kGpt2},
    PreTokenizerKind{"mpt", Form::kGpt2, true},
    PreTokenizerKind{"olmo", Form::kGpt2, true},
    PreTokenizerKind{"smollm", Form::kDigitsGpt2},
    PreTokenizerKind{"starcoder", Form::kDigitsGpt2},
    PreTokenizerKind{"refact", Form::kDigitsGpt2},
    PreTokenizerKind{"codeshell", Form::kDigitsGpt2},
    PreTokenizerKind{"command-r", Form::kDigitsGpt2, true},
    PreTokenizerKind{"llama-bpe", Form::kLlama3, false, true},
    PreTokenizerKind{"llama3", Form::kLlama3, false, true},
    PreTokenizerKind{"llama-v3", Form::kLlama3, false, true},
    PreTokenizerKind{"falcon3", Form::kLlama3, false, true},
    PreTokenizerKind{"dbrx", Form::kLlama3},
    PreTokenizerKind{"smaug-bpe", Form::kLlama3},
    PreTokenizerKind{"qwen2", Form::kQwen2, true},
    PreTokenizerKind{"deepseek-r1-qwen", Form::kQwen2},
    PreTokenizerKind{"stablelm2", Form::kQwen2},
    PreTokenizerKind{"megrez", Form::kQwen2},
};

const PreTokenizerKind& find_kind(const std::string& name, const std::string& where) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const auto& kind) { return kind.name == name; });
  if (found != kKinds.end()) return *found;
  std::vector<std::string> names;
  for (const PreTokenizerKind& kind : kKinds) names.emplace_back(kind.name);
  throw DataError(
      name.empty()
          ? std::string("the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre)")
          : fmt::format("the GGUF pre-tokenizer `{}` is not supported", name),
      where,
      fmt::format(
          "supported are {}; or use the model's Hugging Face directory, with its tokenizer.json",
          join(names, ", ")));
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json sequence(const char* key, Json first, Json second) {
  Json steps = Json::array();
  steps.push_back(std::move(first));
  steps.push_back(std::move(second));
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

Json pre_tokenizer_of(Form form) {
  switch (form) {
    case Form::kGpt2:
      return byte_level(true);
    case Form::kDigitsGpt2:
      return sequence("pretokenizers", {{"type", "Digits"}, {"individual_digits", true}},
                      byte_level(true));
    case Form::kLlama3:
      return sequence("pretokenizers", split(kLlama3Pattern), byte_level(false));
    case Form::kQwen2:
      return sequence("pretokenizers", split(kQwen2Pattern), byte_level(false));
  }
  invariant_failed(__FILE__, __LINE__, "unknown form of pre-tokenizer");
}

/// BOS before the text and EOS behind it, as the file asks.
Json post_processor_of(const GgufVocab& vocab, bool add_bos, bool add_eos) {
  const auto token = [&](TokenId id) { return vocab.tokens[static_cast<size_t>(id)]; };
  const Json text_a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             text_b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  const auto add = [&](TokenId id) {
    const Json piece = {{"SpecialToken", {{"id", token(id)}, {"type_id", 0}}}};
    single.push_back(piece);
    pair.push_back(piece);
    specials[token(id)] = {
        {"id", token(id)}, {"ids", Json::array({id})}, {"tokens", Json::array({token(id)})}};
  };
  if (add_bos) add(*vocab.bos);
  single.push_back(text_a);
  pair.push_back(text_a);
  pair.push_back(text_b);
  if (add_eos) add(*vocab.eos);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4;  // llama.cpp's token types

int32_t type_of(const GgufVocab& vocab, size_t i) {
  return vocab.token_types.empty() ? kNormal : vocab.token_types[i];
}

/// Neither control, unknown nor byte.
bool is_mergeable(const GgufVocab& vocab, size_t i) {
  return type_of(vocab, i) == kNormal || type_of(vocab, i) == kUserDefined;
}

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
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
    throw DataError(fmt::format("there are {} tokens but {} token types", vocab.tokens.size(),
                                vocab.token_types.size()),
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

/// Tokens that a text can hold as such, and what they are made of.
void read_added(const GgufVocab& vocab, TokenizerSource& source) {
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    source.bpe.vocab.emplace_back(vocab.tokens[i], id);
    const int32_t type = type_of(vocab, i);
    if (type == kControl || type == kUserDefined) {
      source.added.push_back({.id = id, .content = vocab.tokens[i], .special = type == kControl});
    }
  }
}

void read_bytes(const GgufVocab& vocab, TokenizerSource& source, const std::string& where) {
  const PreTokenizerKind& kind = find_kind(vocab.pre, where);
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    source.bpe.merges.push_back(split_merge(vocab.merges[i], i + 1, where));
  }
  source.bpe.options.ignore_merges = kind.ignore_merges;
  if (kind.nfc) source.normalizer = {{"type", "NFC"}};
  source.pre_tokenizer = pre_tokenizer_of(kind.form);
  source.decoder = byte_level(true);
}

// ---- SentencePiece

constexpr const char* kSpace = "\u2581";

/// SentencePiece merges the neighbours whose union has the best score. As merges: every way to put
/// a token together from two others, the best tokens first, of equals the longer parts, as
/// transformers orders them.
std::vector<std::pair<std::string, std::string>> merges_of(const GgufVocab& vocab) {
  struct Merge {
    float score;
    size_t left_chars, right_chars;
    TokenId left, right;
  };
  std::unordered_map<std::string_view, TokenId> id_of;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (is_mergeable(vocab, i)) id_of.emplace(vocab.tokens[i], static_cast<TokenId>(i));
  }
  std::vector<Merge> merges;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (!is_mergeable(vocab, i)) continue;
    const std::string_view token = vocab.tokens[i];
    const size_t num_chars = count_chars(token);
    size_t left_chars = 0;
    for (size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<uint8_t>(token[at]) & 0xC0) == 0x80) continue;
      ++left_chars;
      const auto left = id_of.find(token.substr(0, at)), right = id_of.find(token.substr(at));
      if (left == id_of.end() || right == id_of.end()) continue;
      merges.push_back(
          {vocab.scores[i], left_chars, num_chars - left_chars, left->second, right->second});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, b.left_chars, b.right_chars, a.left, a.right) <
           std::tuple(-b.score, a.left_chars, a.right_chars, b.left, b.right);
  });
  std::vector<std::pair<std::string, std::string>> result;
  result.reserve(merges.size());
  for (const Merge& merge : merges) {
    result.emplace_back(vocab.tokens[static_cast<size_t>(merge.left)],
                        vocab.tokens[static_cast<size_t>(merge.right)]);
  }
  return result;
}

/// As the converters of transformers write such a model's tokenizer.json.
void read_pieces(const GgufVocab& vocab, TokenizerSource& source, const std::string& where) {
  if (vocab.scores.size() != vocab.tokens.size()) {
    throw DataError(fmt::format("there are {} tokens but {} scores (tokenizer.ggml.scores)",
                                vocab.tokens.size(), vocab.scores.size()),
                    where);
  }
  source.bpe.merges = merges_of(vocab);
  source.bpe.options.byte_fallback = true;
  source.bpe.options.fuse_unk = true;
  if (vocab.unk) source.bpe.options.unk_token = vocab.tokens[static_cast<size_t>(*vocab.unk)];
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (vocab.add_space_prefix) {
    source.normalizer =
        sequence("normalizers", {{"type", "Prepend"}, {"prepend", kSpace}}, replace);
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  } else {
    source.normalizer = replace;
  }
  source.decoder = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}

}  // namespace

TokenizerSource read_gguf_vocab(const GgufVocab& vocab, const std::string& where) {
  if (vocab.model != "gpt2" && vocab.model != "llama") {
    throw DataError(fmt::format("the GGUF tokenizer model `{}` is not supported", vocab.model),
                    where,
                    "supported in tokenizer.ggml.model are gpt2 (byte-level BPE) and llama "
                    "(SentencePiece)");
  }
  if (vocab.tokens.empty())
    throw DataError("the GGUF file has no tokens (tokenizer.ggml.tokens)", where);
  check_ids(vocab, where);
  TokenizerSource source;
  read_added(vocab, source);
  if (vocab.model == "gpt2") {
    read_bytes(vocab, source, where);
  } else {
    read_pieces(vocab, source, where);
  }
  source.bpe.options.characters = !has_byte_level(source.pre_tokenizer);
  const bool add_bos = vocab.add_bos && vocab.bos, add_eos = vocab.add_eos && vocab.eos;
  if (add_bos || add_eos) source.post_processor = post_processor_of(vocab, add_bos, add_eos);
  source.bos = vocab.bos;
  source.eos = vocab.eos;
  return source;
}

}  // namespace sftrun::text
