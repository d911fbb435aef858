#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/data/text_model.h"
#include "sftrun/images/prompt.h"

namespace sftrun::data {

/// How a model reads images: what its processor makes of them, and which tokens stand for them.
struct ImageInput {
  images::ImageProcessor processor;
  images::ImagePrompt prompt;
  tokenizer::TokenId feature = -1;  ///< its positions get images' features
  /// Of all tokens of `prompt`, in order: they never have a label.
  std::vector<tokenizer::TokenId> tokens;
  std::string fingerprint;  ///< of the files' contents
  /// Why images cannot be read, though there are files for it. It is thrown for a record with images alone: texts are read without them.
  std::optional<DataError> refusal;
};

/// @param folder of a model, in Hugging Face layout
/// @return null: it has no files of an image processor, so the model reads text alone
std::shared_ptr<const ImageInput> image_input_of(const std::filesystem::path& folder,
                                                 const tokenizer::Tokenizer& tokenizer);

}  // namespace sftrun::data
