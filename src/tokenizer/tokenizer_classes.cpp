#include "tokenizer_classes.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "sections.h"
#include "splitters.h"

namespace sftrun::tokenizer {
namespace {

template <size_t N>
bool is_one_of(const std::string& name, const std::array<std::string_view, N>& names) {
  for (const std::string_view other : names)
    if (name == other) return true;
  return false;
}

/// The class that AutoTokenizer loads; "" if the class uses the file unchanged.
struct LoadingClass {
  std::string name;
  bool is_of_type = false;  ///< chosen by model type, not by the class in the directory
};

LoadingClass class_that_loads(const TokenizerConfig& config, const std::string& model_type) {
  static constexpr std::array<std::string_view, 6> kTakenAsTheyAre = {
      "mistral", "mixtral", "phi3", "olmo2", "olmo3", "granite"};
  static constexpr std::array<std::string_view, 2> kQwen3 = {"qwen3", "qwen3_moe"};
  static constexpr std::array<std::string_view, 3> kQwen35 = {"qwen3_5", "qwen3_5_moe",
                                                              "qwen3_5_moe_text"};
  if (is_one_of(model_type, kTakenAsTheyAre)) return {};
  if (model_type == "qwen2") return {"Qwen2Tokenizer", true};
  if (is_one_of(model_type, kQwen35)) return {"Qwen3_5Tokenizer", true};
  const std::string named = config.tokenizer_class();
  if (!named.empty()) return {named};
  if (is_one_of(model_type, kQwen3)) return {"Qwen2Tokenizer"};
  return {model_type == "qwen3_5_text" ? "Qwen3_5Tokenizer" : ""};
}

/// Removes differences that do not change ids: offsets, defaults that older files omit, sequences
/// of one step, and the order of keys.
nlohmann::json essence(nlohmann::json section, const char* steps) {
  if (!section.is_object()) return section;
  section.erase("trim_offsets");
  if (section.value("type", nlohmann::json()) == "ByteLevel") section.emplace("use_regex", true);
  if (!section.contains(steps) || !section.at(steps).is_array()) return section;
  for (nlohmann::json& step : section.at(steps)) step = essence(std::move(step), steps);
  return section.at(steps).size() == 1 ? nlohmann::json(section.at(steps).front()) : section;
}

bool are_same(const Json& one, const Json& other, const char* steps) {
  return essence(one, steps) == essence(other, steps);
}

}  // namespace

std::optional<ClassSections> sections_of_class(const std::string& name,
                                               const TokenizerConfig& config) {
  static constexpr std::array<std::string_view, 3> kGpt2 = {"", "GPT2Tokenizer",
                                                            "CodeGenTokenizer"};
  const bool prefixes = config.flag("add_prefix_space").value_or(false);
  const auto split = [&](const char* pattern) {
    return ClassSections{{{"type", "NFC"}},
                         sequence_section("pretokenizers", {split_section(pattern),
                                                            byte_level_section(false, prefixes)})};
  };
  if (name == "Qwen2Tokenizer") return split(kQwen2Pattern);
  if (name == "Qwen3_5Tokenizer") return split(kQwen35Pattern);
  if (is_one_of(name, kGpt2)) return ClassSections{nullptr, byte_level_section(true, prefixes)};
  return std::nullopt;
}

std::optional<OtherClass> other_class(const TokenizerSource& source, const TokenizerConfig& config,
                                      const std::string& model_type) {
  const LoadingClass loading = class_that_loads(config, model_type);
  const auto own = loading.name.empty() ? std::nullopt : sections_of_class(loading.name, config);
  if (!own) return std::nullopt;
  std::vector<std::string> parts;
  if (!are_same(source.normalizer, own->normalizer, "normalizers")) parts.push_back("normalizer");
  if (!are_same(source.pre_tokenizer, own->pre_tokenizer, "pretokenizers"))
    parts.push_back("pre_tokenizer");
  if (parts.empty()) return std::nullopt;
  const char* remedy =
      loading.is_of_type
          ? "load it there with TokenizersBackend.from_pretrained, not with AutoTokenizer"
          : "write \"tokenizer_class\": \"TokenizersBackend\" into tokenizer_config.json";
  return OtherClass{own->normalizer,
                    own->pre_tokenizer,
                    {loading.name, fmt::format("{}", fmt::join(parts, " and the ")), remedy}};
}

}  // namespace sftrun::tokenizer
