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
#include "sftrun/spec/vision_spec.h"

namespace sftrun::data {

/// How a model reads frames of videos.
struct VideoInput {
  images::VideoProcessor processor;
  images::VideoPrompt prompt;
  tokenizer::TokenId feature = -1;  ///< its positions get frames' features
  /// M-RoPE: positions on the axis of time for a second, where a video has one place (Qwen2.5-VL); 0: each group of frames has its own.
  int64_t tokens_per_second = 0;
  /// For conversations with videos, where the model's own writes none (SmolVLM2); null: there is no other.
  std::shared_ptr<const templates::ChatTemplate> chat_template;
};

/// How a model reads images: what its processor makes of them, and which tokens stand for them.
struct ImageInput {
  images::ImageProcessor processor;
  images::ImagePrompt prompt;
  tokenizer::TokenId feature = -1;  ///< its positions get images' features
  /// Of all tokens of `prompt` and of that of videos, in order: they never have a label.
  std::vector<tokenizer::TokenId> tokens;
  /// Of config.json, which images must fit (`tower_grid`); null: the folder has none, or describes no tower.
  std::shared_ptr<const spec::VisionSpec> tower;
  std::string fingerprint;  ///< of the files' contents
  bool reads_files = true;  ///< false: images are in their records alone
  /// Null: videos cannot be read, and `video_refusal` says why to a record that has one.
  std::shared_ptr<const VideoInput> videos;
  std::optional<DataError> video_refusal;
  /// Why images cannot be read, though there are files for it. It is thrown for a record with images alone: texts are read without them.
  std::optional<DataError> refusal;
};

/// Lets a model's text side read images. A built-in chat template is replaced by the one that writes the model's images.
/// @param images null: it reads none
void set_images(TextModel& text, std::shared_ptr<const ImageInput> images);

/// The limits of `data.max_image_pixels` and `data.image_longest_edge`.
images::ImageCaps image_caps(const config::DataConfig& data);
/// Advice for images with too many tokens, behind another: the limit that the model's processor has; empty: it has none.
std::string way_to_smaller_images(const TextModel& model);
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
/// @return null: a model of text. With a `refusal` if it has no files of an image processor, and config.json describes a vision tower
/// @throws ConfigError for a limit that the image processor does not have, or that is too low for it
std::shared_ptr<const ImageInput> image_input_of(const std::filesystem::path& folder,
                                                 const tokenizer::Tokenizer& tokenizer,
                                                 const images::ImageCaps& caps = {});

}  // namespace sftrun::data
