#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/data/text_model.h"
#include "support/temporary_directory.h"

/// A model's text side in small: one token a byte, four special tokens, ChatML.
namespace sftrun::test {

inline constexpr int32_t kBos = 256, kEos = 257, kImStart = 258, kImEnd = 259;

inline constexpr const char* kChatMl =
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') ~ '<|im_end|>' ~ '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// Drops what stands up to </think> in answers before the last user turn, as reasoning models'
/// templates do, unless preserve_thinking is set.
inline constexpr const char* kThinkingChatMl =
    "{%- set ns = namespace(last_user=-1) -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set ns.last_user = "
    "loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}"
    "{%- set content = message.content -%}"
    "{%- if message.role == 'assistant' and loop.index0 < ns.last_user and not preserve_thinking "
    "-%}"
    "{%- set content = content.split('</think>')[-1] -%}{%- endif -%}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>' ~ '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// The character that GPT-2's byte-level alphabet writes for a byte, as UTF-8.
inline std::string byte_character(int byte) {
  const auto is_itself = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!is_itself(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += is_itself(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// @param more special tokens, with the ids from 260 on
inline nlohmann::ordered_json tokenizer_json(bool adds_bos, bool adds_eos = false,
                                             const std::vector<std::string>& more = {}) {
  using Json = nlohmann::ordered_json;
  Json vocab = Json::object(), added = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_character(byte)] = byte;
  int id = 256;
  std::vector<std::string> tokens = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
  tokens.insert(tokens.end(), more.begin(), more.end());
  for (const std::string& token : tokens) {
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[token] = id++;
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  Json post = nullptr;
  if (adds_bos || adds_eos) {
    const auto special = [](const char* token) {
      return Json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
    };
    const auto text = [](const char* name, int type) {
      return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
    };
    Json single = Json::array({text("A", 0)}), pair = Json::array({text("A", 0), text("B", 1)});
    for (Json* pieces : {&single, &pair}) {
      if (adds_bos) pieces->insert(pieces->begin(), special("<s>"));
      if (adds_eos) pieces->push_back(special("</s>"));
    }
    post = {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens",
             {{"<s>", {{"id", "<s>"}, {"ids", {kBos}}, {"tokens", {"<s>"}}}},
              {"</s>", {{"id", "</s>"}, {"ids", {kEos}}, {"tokens", {"</s>"}}}}}}};
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", post},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

/// @param chat_template its source; empty: the model has none
/// @param adds_bos, adds_eos the tokenizer's post-processor puts them around texts
inline data::TextModel toy_model(const std::string& chat_template = kChatMl, bool adds_bos = false,
                                 bool adds_eos = false) {
  const TemporaryDirectory dir;
  write_file_atomically(dir / "tokenizer.json", tokenizer_json(adds_bos, adds_eos).dump());
  write_file_atomically(dir / "tokenizer_config.json",
                        R"({"bos_token": "<s>", "eos_token": "</s>"})");
  return data::make_text_model(tokenizer::Tokenizer::from_directory(dir.path()), std::nullopt,
                               {.bos_token = "<s>", .eos_token = "</s>"}, chat_template, {kImEnd});
}

}  // namespace sftrun::test
