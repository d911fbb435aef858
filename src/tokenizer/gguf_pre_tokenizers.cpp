#include "gguf_pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "sections.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "splitters.h"

namespace sftrun::tokenizer {
namespace {

enum class Form : uint8_t {
  kGpt2,
  kDigitsGpt2,
  kLlama3,
  kQwen2,
  kQwen35,
  kTekken,
  kGpt4o,
  kDeepSeekCoder,
  kDeepSeekV3,
  kFalcon,
  kBloom,
  kBailing,
  kSeedCoder,
  kDefault,
};

/// A name means the pre-tokenizer of the model it was taken from (its tokenizer.json, with NFC if
/// that has it), and llama.cpp's (src/llama-vocab.cpp) for names that several models share.
struct PreTokenizerKind {
  std::string_view name;
  Form form;
  bool nfc = false, ignore_merges = false;
};

constexpr std::array kKinds = {
    PreTokenizerKind{"default", Form::kDefault},
    PreTokenizerKind{"gpt-2", Form::kGpt2},
    PreTokenizerKind{"phi-2", Form::kGpt2},
    PreTokenizerKind{"mpt", Form::kGpt2, true},
    PreTokenizerKind{"olmo", Form::kGpt2, true},
    PreTokenizerKind{"jais", Form::kGpt2},
    PreTokenizerKind{"exaone4", Form::kGpt2},
    PreTokenizerKind{"trillion", Form::kGpt2},
    PreTokenizerKind{"mellum", Form::kGpt2},
    PreTokenizerKind{"modern-bert", Form::kGpt2, true},
    PreTokenizerKind{"smollm", Form::kDigitsGpt2},
    PreTokenizerKind{"starcoder", Form::kDigitsGpt2},
    PreTokenizerKind{"refact", Form::kDigitsGpt2},
    PreTokenizerKind{"codeshell", Form::kDigitsGpt2},
    PreTokenizerKind{"command-r", Form::kDigitsGpt2, true},
    PreTokenizerKind{"exaone", Form::kDigitsGpt2, true},
    PreTokenizerKind{"minerva-7b", Form::kDigitsGpt2},
    PreTokenizerKind{"llama-bpe", Form::kLlama3, false, true},
    PreTokenizerKind{"llama3", Form::kLlama3, false, true},
    PreTokenizerKind{"llama-v3", Form::kLlama3, false, true},
    PreTokenizerKind{"falcon3", Form::kLlama3, false, true},
    PreTokenizerKind{"falcon-h1", Form::kLlama3, false, true},
    PreTokenizerKind{"pixtral", Form::kLlama3, false, true},
    PreTokenizerKind{"lfm2", Form::kLlama3, false, true},
    PreTokenizerKind{"dbrx", Form::kLlama3},
    PreTokenizerKind{"smaug-bpe", Form::kLlama3},
    PreTokenizerKind{"glm4", Form::kLlama3},
    PreTokenizerKind{"chatglm-bpe", Form::kLlama3},
    PreTokenizerKind{"qwen2", Form::kQwen2, true},
    PreTokenizerKind{"deepseek-r1-qwen", Form::kQwen2},
    PreTokenizerKind{"stablelm2", Form::kQwen2},
    PreTokenizerKind{"megrez", Form::kQwen2},
    PreTokenizerKind{"hunyuan", Form::kQwen2},
    PreTokenizerKind{"solar-open", Form::kQwen2},
    PreTokenizerKind{"grok-2", Form::kQwen2},
    PreTokenizerKind{"qwen35", Form::kQwen35, true},
    PreTokenizerKind{"tekken", Form::kTekken, false, true},
    PreTokenizerKind{"gpt-4o", Form::kGpt4o},
    PreTokenizerKind{"llama4", Form::kGpt4o},
    PreTokenizerKind{"kanana2", Form::kGpt4o},
    PreTokenizerKind{"minimax-m2", Form::kGpt4o},
    PreTokenizerKind{"deepseek-coder", Form::kDeepSeekCoder},
    PreTokenizerKind{"deepseek-v3", Form::kDeepSeekV3},
    PreTokenizerKind{"hunyuan-dense", Form::kDeepSeekV3},
    PreTokenizerKind{"falcon", Form::kFalcon},
    PreTokenizerKind{"bloom", Form::kBloom},
    PreTokenizerKind{"poro-chat", Form::kBloom},
    PreTokenizerKind{"gpt3-finnish", Form::kBloom},
    PreTokenizerKind{"bailingmoe", Form::kBailing},
    PreTokenizerKind{"seed-coder", Form::kSeedCoder},
};

constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekV3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBailingPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoderPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloomPattern = " ?[^(\\s|.,!?…。，、।۔،)]+";
/// Patterns that are applied one after the other.
std::vector<std::string> patterns_of(Form form) {
  switch (form) {
    case Form::kGpt2:
      return {kGpt2Pattern};
    case Form::kDigitsGpt2:
      return {R"(\p{N})", kGpt2Pattern};
    case Form::kLlama3:
      return {kLlama3Pattern};
    case Form::kQwen2:
      return {kQwen2Pattern};
    case Form::kQwen35:
      return {kQwen35Pattern};
    case Form::kTekken:
      return {kTekkenPattern};
    case Form::kGpt4o:
      return {kGpt4oPattern};
    case Form::kDeepSeekCoder:
      return {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"};
    case Form::kDeepSeekV3:
      return {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeekV3Pattern};
    case Form::kFalcon:
      return {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"};
    case Form::kBloom:
      return {kBloomPattern};
    case Form::kBailing:
      return {kBailingPattern};
    case Form::kSeedCoder:
      return {kSeedCoderPattern};
    case Form::kDefault:
      return {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"};
  }
  invariant_failed(__FILE__, __LINE__, "unknown form of pre-tokenizer");
}

Json pre_tokenizer_of(Form form) {
  std::vector<Json> steps;
  if (form == Form::kGpt2) return byte_level_section(true);
  if (form == Form::kDigitsGpt2) {  // as in these models' own files
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(byte_level_section(true));
    return sequence_section("pretokenizers", std::move(steps));
  }
  for (const std::string& pattern : patterns_of(form)) steps.push_back(split_section(pattern));
  steps.push_back(byte_level_section(false));
  return sequence_section("pretokenizers", std::move(steps));
}

[[noreturn]] void fail_unknown(const std::string& name, const std::string& where) {
  const std::vector<std::string> names = gguf_pre_tokenizer_names();
  throw DataError(
      name.empty()
          ? std::string("the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre)")
          : fmt::format("the GGUF pre-tokenizer `{}` is not supported", name),
      where,
      fmt::format("use the model's Hugging Face directory with its tokenizer.json; supported "
                  "pre-tokenizers: {}",
                  join(names, ", ")));
}

}  // namespace

std::vector<std::string> gguf_pre_tokenizer_names() {
  std::vector<std::string> names;
  names.reserve(kKinds.size());
  for (const PreTokenizerKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

GgufPreTokenizer gguf_pre_tokenizer(const std::string& name, const std::string& where) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const PreTokenizerKind& kind) { return kind.name == name; });
  if (found == kKinds.end()) fail_unknown(name, where);
  return {found->nfc ? Json{{"type", "NFC"}} : Json(), pre_tokenizer_of(found->form),
          found->ignore_merges};
}

}  // namespace sftrun::tokenizer
