#pragma once

#include <filesystem>
#include <string>

#include "sftrun/data/image_input.h"
#include "sftrun/data/text_model.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::app {

/// Loads tokenizer and chat template of a model: a GGUF file, or a directory in Hugging Face layout
/// in which only the tokenizer's files are needed.
/// @param configured_template model.chat_template; empty: the model's own
/// @param caps of images, for a model that has an image processor
/// @throws ConfigError for caps that the image processor does not have
data::TextModel load_text_model(const std::filesystem::path& model,
                                const std::string& configured_template,
                                const images::ImageCaps& caps = {});
/// The same with the settings of a run. Warns of settings of images without an effect.
/// @param arch with the projectors of the run
data::TextModel load_text_model(const std::filesystem::path& model, const config::RunConfig& config,
                                const spec::ArchSpec& arch);

}  // namespace sftrun::app
