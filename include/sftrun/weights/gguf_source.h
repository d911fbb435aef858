#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace sftrun::weights {

/// The repository on the Hugging Face hub, "owner/name", from which a GGUF file was converted;
/// nullopt if its metadata do not contain it. Read from these keys, in this order:
///     general.source.huggingface.repository, general.source.repo_url, general.source.url
///     general.base_model.0.repo_url, if its name is that of the model itself: llama.cpp's
///       converter also uses the key for the model that it was fine-tuned from
std::optional<std::string> source_repository(const nlohmann::json& metadata);
/// The same for a file.   @throws DataError as GgufFile
std::optional<std::string> source_repository(const std::filesystem::path& file);

}  // namespace sftrun::weights
