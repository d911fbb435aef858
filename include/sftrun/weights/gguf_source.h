#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace sftrun::weights {

/// The repository on the Hugging Face hub, "owner/name", that a GGUF file is a conversion of;
/// nullopt where its metadata do not say. In this order:
///     general.source.huggingface.repository, general.source.repo_url, general.source.url
///     general.base_model.0.repo_url, where that has the name of the model itself: llama.cpp's
///       converter also writes there what a model was fine-tuned from, which is another model
std::optional<std::string> source_repository(const nlohmann::json& metadata);
/// Of a file.   @throws DataError as GgufFile
std::optional<std::string> source_repository(const std::filesystem::path& file);

}  // namespace sftrun::weights
