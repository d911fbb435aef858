#include "sftrun/weights/hf_text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "json_text.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/finite_json.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char *kChat = "sftrun_chat.json", *kVariables = "chat_template_kwargs";

/// The object in the file; an empty one if there is no file.
json read_object(const fs::path& path) {
  if (!has_optional_file(path)) return json::object();
  json value = parse_json(read_text_file(path), path.string());
  if (!value.is_object()) throw DataError("not a JSON object", path.string());
  return value;
}

/// Only sftrun writes that file, so a key that is not as written is damage.
[[noreturn]] void fail_damaged(const fs::path& path, const std::string& reason) {
  throw DataError("the file is damaged: " + reason, path.string(),
                  "copy or download the adapter or model again");
}

}  // namespace

std::vector<int64_t> generation_eos_ids(const fs::path& directory) {
  const fs::path path = directory / kGenerationConfig;
  const json config = read_object(path);
  const auto eos = config.find("eos_token_id");
  if (eos == config.end() || eos->is_null()) return {};
  std::vector<int64_t> ids;
  for (const json& id : eos->is_array() ? *eos : json::array({*eos})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) {
      throw DataError("`eos_token_id` must be a token id or a list of token ids", path.string());
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

templates::Json read_template_variables(const fs::path& directory) {
  const fs::path path = directory / kChat;
  if (!has_optional_file(path)) return templates::Json::object();
  const std::string text = read_text_file(path);
  parse_json(text, path.string());                             // its error names the line
  const auto chat = parse_python_json<templates::Json>(text);  // keeps the order of the keys
  if (chat.is_discarded()) fail_damaged(path, "it has too many keys");
  if (!chat.is_object()) fail_damaged(path, "it is not a JSON object");
  if (!chat.contains(kVariables)) fail_damaged(path, fmt::format("`{}` is missing", kVariables));
  const templates::Json& variables = chat[kVariables];
  if (!variables.is_object())
    fail_damaged(path, fmt::format("`{}` is not an object: {}", kVariables,
                                   excerpt(dump_python_json(variables))));
  if (const auto key = find_not_finite(variables, kVariables))
    fail_damaged(path, fmt::format("`{}` is not a finite number", *key));
  return variables;
}

void write_template_variables(const fs::path& directory, const templates::Json& variables) {
  if (variables.empty()) return;
  write_file_atomically(directory / kChat, templates::Json{{kVariables, variables}}.dump(2) + "\n");
}

std::string variables_warning(const templates::Json& variables, TemplateReader reader) {
  if (variables.empty()) return {};
  const std::string text = variables.dump();
  const bool is_vllm = reader == TemplateReader::kVllm;
  return fmt::format(
      "trained with variables of the chat template, which {} does not read from its files: {}",
      is_vllm ? "vLLM" : "llama.cpp",
      is_vllm ? "give them in each request: \"chat_template_kwargs\": " + text
              : "start llama-server with --chat-template-kwargs " + shell_word(text));
}

templates::RenderOptions read_special_texts(const fs::path& directory) {
  auto texts = tokenizer::special_token_texts(directory);
  templates::RenderOptions options;
  options.bos_token = texts["bos_token"];
  options.eos_token = texts["eos_token"];
  options.unk_token = texts["unk_token"];
  options.pad_token = texts["pad_token"];
  return options;
}

namespace {

/// `eos_token_id` is one id or a list.   @return false if it is not set
bool add_eos(nlohmann::ordered_json& config, int64_t id) {
  const auto eos = config.find("eos_token_id");
  if (eos == config.end() || eos->is_null()) return false;
  auto ids = eos->is_array() ? *eos : nlohmann::ordered_json::array({*eos});
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  *eos = std::move(ids);
  return true;
}

}  // namespace

void add_eos(const fs::path& directory, int64_t id) {
  for (const char* name : {"config.json", kGenerationConfig}) {
    const fs::path path = directory / name;
    if (!has_optional_file(path)) continue;
    auto config = parse_python_json<nlohmann::ordered_json>(read_utf8_file(path));
    const auto text = config.find("text_config");
    const bool is_in_part = text != config.end() && add_eos(*text, id);
    const bool is_there = add_eos(config, id) || is_in_part;
    if (!is_there && name != std::string(kGenerationConfig)) config["eos_token_id"] = id;
    write_file_atomically(path, dump_python_json(config, 2) + "\n");
  }
}

void copy_generation_config(const fs::path& from, const fs::path& to) {
  if (has_optional_file(from / kGenerationConfig))
    write_file_atomically(to / kGenerationConfig, read_text_file(from / kGenerationConfig));
}

void copy_text_files(const fs::path& from, const fs::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        kGenerationConfig, "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
        "processor_config.json", "video_preprocessor_config.json"}) {
    if (has_optional_file(from / name))
      write_file_atomically(to / name, read_text_file(from / name));
  }
}

}  // namespace sftrun::weights
