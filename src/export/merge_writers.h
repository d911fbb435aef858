#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "image_side.h"
#include "merged_tensor.h"
#include "sftrun/export/merge.h"
#include "sftrun/images/processor.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/embedding_files.h"

/// The two formats of a merged model.
namespace sftrun::exporting {

/// A directory with safetensors files, config.json, tokenizer and chat template.
WrittenModel write_safetensors_model(const MergeOptions& options, const weights::AdapterBase& base,
                                     MergedWeights& merged);

/// The file that `output` names, or a directory with a GGUF file and a Modelfile for Ollama.
/// @param images is written beside the file; null: there is no image side that llama.cpp reads
WrittenModel write_gguf_model(const MergeOptions& options, const weights::AdapterBase& base,
                              MergedWeights& merged, const ImageSide* images);

/// A model's name: "mine" of models/mine, of models/mine/ and of mine.gguf.
std::string name_of_output(const MergeOptions& options);

/// The chat template that the directory of the adapter or checkpoint has; nullopt: none.
std::optional<std::string> chat_template_of(const MergeOptions& options);

/// The variables of that template in training; {}: none.
nlohmann::ordered_json template_variables_of(const MergeOptions& options);

/// The limits of images in training.
images::ImageCaps image_caps_of(const MergeOptions& options);

/// How the trained model embeds texts; nullopt: it does not.
std::optional<weights::EmbeddingSettings> embedding_of(const MergeOptions& options);

/// Fills a new directory in the place of `output`, which appears when it is complete.
void write_merged_directory(const MergeOptions& options,
                            const std::function<void(const std::filesystem::path&)>& write);

}  // namespace sftrun::exporting
