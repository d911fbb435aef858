#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
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
  bool reads_files = true;  ///< false: images are in their records alone
  /// Why images cannot be read, though there are files for it. It is thrown for a record with images alone: texts are read without them.
  std::optional<DataError> refusal;
};

/// The limits of `data.max_image_pixels` and `data.image_longest_edge`.
images::ImageCaps image_caps(const config::DataConfig& data);
/// Which of these limits are set although the model reads text alone: a warning for each.
std::vector<std::string> idle_image_caps(const TextModel& model, const config::DataConfig& data);

/// Whether a model's folder has files of an image processor.
bool has_image_processor(const std::filesystem::path& folder);

/// @param has_tower whether the model's config.json describes one
/// @param where the flag or setting that asks for images
/// @throws ConfigError if the model reads text alone, or its folder has no files of an image processor
void require_image_side(bool has_tower, const std::filesystem::path& folder,
                        const std::string& where);

/// @param folder of a model, in Hugging Face layout
/// @return null: it has no files of an image processor, so the model reads text alone
/// @throws ConfigError for a limit that the image processor does not have, or that is too low for it
std::shared_ptr<const ImageInput> image_input_of(const std::filesystem::path& folder,
                                                 const tokenizer::Tokenizer& tokenizer,
                                                 const images::ImageCaps& caps = {});

}  // namespace sftrun::data
