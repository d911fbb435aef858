#include "sections.h"

#include <utility>

namespace sftrun::tokenizer {

Json byte_level_section(bool use_regex, bool add_prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json split_section(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json replace_section(const std::string& literal, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", literal}}}, {"content", content}};
}

Json sequence_section(const char* key, std::vector<Json> steps) {
  if (steps.empty()) return Json();
  if (steps.size() == 1) return std::move(steps[0]);
  Json list = Json::array();
  for (Json& step : steps) list.push_back(std::move(step));
  return {{"type", "Sequence"}, {key, std::move(list)}};
}

Json template_section(const std::optional<NamedToken>& bos, const std::optional<NamedToken>& eos) {
  if (!bos && !eos) return Json();
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  const auto text = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const auto add = [&](const std::optional<NamedToken>& token) {
    if (!token) return;
    const Json piece = {{"SpecialToken", {{"id", token->text}, {"type_id", 0}}}};
    single.push_back(piece);
    pair.push_back(piece);
    specials[token->text] = {{"id", token->text},
                             {"ids", Json::array({token->id})},
                             {"tokens", Json::array({token->text})}};
  };
  add(bos);
  single.push_back(text("A", 0));
  pair.push_back(text("A", 0));
  pair.push_back(text("B", 1));
  add(eos);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

Json pieces_decoder_section(bool strips_first_space) {
  std::vector<Json> steps = {
      replace_section(kVisibleSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (strips_first_space)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence_section("decoders", std::move(steps));
}

}  // namespace sftrun::tokenizer
