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

namespace sftrun::text {
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

/// The meaning of a name is that of the model it was taken from (its tokenizer.json, with NFC where
/// that has it), and llama.cpp's (src/llama-vocab.cpp) for names that several models share.
struct Kind {
  std::string_view name;
  Form form;
  bool nfc = false, ignore_merges = false;
};

constexpr std::array kKinds = {
    Kind{"default", Form::kDefault},
    Kind{"gpt-2", Form::kGpt2},
    Kind{"phi-2", Form::kGpt2},
    Kind{"mpt", Form::kGpt2, true},
    Kind{"olmo", Form::kGpt2, true},
    Kind{"jais", Form::kGpt2},
    Kind{"exaone4", Form::kGpt2},
    Kind{"trillion", Form::kGpt2},
    Kind{"mellum", Form::kGpt2},
    Kind{"modern-bert", Form::kGpt2, true},
    Kind{"smollm", Form::kDigitsGpt2},
    Kind{"starcoder", Form::kDigitsGpt2},
    Kind{"refact", Form::kDigitsGpt2},
    Kind{"codeshell", Form::kDigitsGpt2},
    Kind{"command-r", Form::kDigitsGpt2, true},
    Kind{"exaone", Form::kDigitsGpt2, true},
    Kind{"minerva-7b", Form::kDigitsGpt2},
    Kind{"llama-bpe", Form::kLlama3, false, true},
    Kind{"llama3", Form::kLlama3, false, true},
    Kind{"llama-v3", Form::kLlama3, false, true},
    Kind{"falcon3", Form::kLlama3, false, true},
    Kind{"falcon-h1", Form::kLlama3, false, true},
    Kind{"pixtral", Form::kLlama3, false, true},
    Kind{"lfm2", Form::kLlama3, false, true},
    Kind{"dbrx", Form::kLlama3},
    Kind{"smaug-bpe", Form::kLlama3},
    Kind{"glm4", Form::kLlama3},
    Kind{"chatglm-bpe", Form::kLlama3},
    Kind{"qwen2", Form::kQwen2, true},
    Kind{"deepseek-r1-qwen", Form::kQwen2},
    Kind{"stablelm2", Form::kQwen2},
    Kind{"megrez", Form::kQwen2},
    Kind{"hunyuan", Form::kQwen2},
    Kind{"solar-open", Form::kQwen2},
    Kind{"grok-2", Form::kQwen2},
    Kind{"qwen35", Form::kQwen35, true},
    Kind{"tekken", Form::kTekken, false, true},
    Kind{"gpt-4o", Form::kGpt4o},
    Kind{"llama4", Form::kGpt4o},
    Kind{"kanana2", Form::kGpt4o},
    Kind{"minimax-m2", Form::kGpt4o},
    Kind{"deepseek-coder", Form::kDeepSeekCoder},
    Kind{"deepseek-v3", Form::kDeepSeekV3},
    Kind{"hunyuan-dense", Form::kDeepSeekV3},
    Kind{"falcon", Form::kFalcon},
    Kind{"bloom", Form::kBloom},
    Kind{"poro-chat", Form::kBloom},
    Kind{"gpt3-finnish", Form::kBloom},
    Kind{"bailingmoe", Form::kBailing},
    Kind{"seed-coder", Form::kSeedCoder},
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
/// Patterns that split one after the other.
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
  if (form == Form::kDigitsGpt2) {  // as these models' own files have it
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
      fmt::format(
          "supported are {}; or use the model's Hugging Face directory, with its tokenizer.json",
          join(names, ", ")));
}

}  // namespace

std::vector<std::string> gguf_pre_tokenizer_names() {
  std::vector<std::string> names;
  names.reserve(kKinds.size());
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

GgufPreTokenizer gguf_pre_tokenizer(const std::string& name, const std::string& where) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const Kind& kind) { return kind.name == name; });
  if (found == kKinds.end()) fail_unknown(name, where);
  return {found->nfc ? Json{{"type", "NFC"}} : Json(), pre_tokenizer_of(found->form),
          found->ignore_merges};
}

}  // namespace sftrun::text
