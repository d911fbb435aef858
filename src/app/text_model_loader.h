#pragma once

#include <filesystem>
#include <string>

#include "sftrun/data/text_model.h"

namespace sftrun::app {

/// Loads tokenizer and chat template of a model: a GGUF file, or a directory in Hugging Face layout
/// in which only the tokenizer's files are needed.
/// @param configured_template model.chat_template; empty: the model's own
data::TextModel load_text_model(const std::filesystem::path& model,
                                const std::string& configured_template);

}  // namespace sftrun::app
