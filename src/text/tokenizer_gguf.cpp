#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

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

constexpr int32_t kControl = 3, kUserDefined = 4;  // llama.cpp's token types

void check_ids(const GgufVocab& vocab, const std::string& where) {
  for (const auto& [name, id] : {std::pair{"bos", vocab.bos}, {"eos", vocab.eos}}) {
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

}  // namespace

TokenizerSource read_gguf_vocab(const GgufVocab& vocab, const std::string& where) {
  if (vocab.model != "gpt2") {
    throw DataError(fmt::format("the GGUF tokenizer model `{}` is not supported", vocab.model),
                    where,
                    "use a model with a byte-level BPE tokenizer (`gpt2` in tokenizer.ggml.model)");
  }
  if (vocab.tokens.empty())
    throw DataError("the GGUF file has no tokens (tokenizer.ggml.tokens)", where);
  const PreTokenizerKind& kind = find_kind(vocab.pre, where);
  check_ids(vocab, where);
  TokenizerSource source;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    source.bpe.vocab.emplace_back(vocab.tokens[i], id);
    const int32_t type = vocab.token_types.empty() ? 1 : vocab.token_types[i];
    if (type == kControl || type == kUserDefined) {
      source.added.push_back({.id = id, .content = vocab.tokens[i], .special = type == kControl});
    }
  }
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    source.bpe.merges.push_back(split_merge(vocab.merges[i], i + 1, where));
  }
  source.bpe.options.ignore_merges = kind.ignore_merges;
  if (kind.nfc) source.normalizer = {{"type", "NFC"}};
  source.pre_tokenizer = pre_tokenizer_of(kind.form);
  const bool add_bos = vocab.add_bos && vocab.bos, add_eos = vocab.add_eos && vocab.eos;
  if (add_bos || add_eos) source.post_processor = post_processor_of(vocab, add_bos, add_eos);
  source.decoder = byte_level(true);
  source.bos = vocab.bos;
  source.eos = vocab.eos;
  return source;
}

}  // namespace sftrun::text
