#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/templates/chat_template.h"

/// Reads and writes the small files of a Hugging Face model that describe its text: tokenizer
/// settings, chat template, EOS. A missing file is not an error; a malformed one is a DataError.
namespace sftrun::weights {

/// generation_config.json's eos_token_id.
std::vector<int64_t> generation_eos_ids(const std::filesystem::path& directory);
/// The variables of the chat template with which a run rendered its conversations: `sftrun_chat.json`
/// beside its adapter or model, {"chat_template_kwargs": {…}}. Without the file, or for a path that is
/// not a directory, {}.
templates::Json read_template_variables(const std::filesystem::path& directory);
/// Writes that file, if there are variables.   @throws DeviceError
void write_template_variables(const std::filesystem::path& directory,
                              const templates::Json& variables);
/// Programs that take no variables of the template from files.
enum class TemplateReader { kLlamaCpp, kVllm };
/// A warning that says how to give them to such a program; empty without variables.
std::string variables_warning(const templates::Json& variables, TemplateReader reader);
/// The texts of bos, eos, unk and pad (tokenizer::special_token_texts).
templates::RenderOptions read_special_texts(const std::filesystem::path& directory);
/// Copies generation_config.json if `from` has it.   @throws DeviceError
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);
/// Adds a token to the model's EOS tokens: in config.json, and in generation_config.json if that
/// has EOS tokens.
void add_eos(const std::filesystem::path& directory, int64_t id);
/// Copies the files of the tokenizer, the chat template, the processor of images and
/// generation_config.json, as far as `from` has them. @throws DeviceError
void copy_text_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sftrun::weights
