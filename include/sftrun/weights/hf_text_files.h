#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/text/chat_template.h"

/// The small files beside a Hugging Face model that say how it reads and ends text. A file that is
/// missing is none of these functions' errors; one that is malformed is a DataError.
namespace sftrun::weights {

/// generation_config.json's eos_token_id.
std::vector<int64_t> generation_eos_ids(const std::filesystem::path& directory);
/// chat_template.jinja, else tokenizer_config.json's chat_template: a string, or the "default" of a
/// list.
std::optional<std::string> read_chat_template(const std::filesystem::path& directory);
/// The texts of bos, eos, unk and pad (text::special_token_texts).
text::RenderOptions read_special_texts(const std::filesystem::path& directory);
/// Of one directory into another, where there is one.   @throws DeviceError
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);
/// Lets texts of a model end with one more token: in config.json, and in generation_config.json
/// where that names ends, too.
void add_eos(const std::filesystem::path& directory, int64_t id);
/// Copies what `from` has of tokenizer.json, tokenizer_config.json, special_tokens_map.json,
/// generation_config.json and chat_template.jinja. @throws DeviceError
void copy_text_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sftrun::weights
