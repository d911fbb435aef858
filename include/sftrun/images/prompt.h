#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/images/video.h"

/// The text that stands for an image or a video, as the processors of transformers 5.23 write it (`replace_image_token`,
/// `replace_video_token`). One row of a table for each kind of processor.
namespace sftrun::images {

/// The texts of the tokens with which a model writes images.
struct ImagePrompt {
  ProcessorKind kind = ProcessorKind::kClip;
  std::string placeholder;  ///< what the chat template writes for an image
  std::string feature;      ///< the token whose positions get the image's features
  std::string begin, end;   ///< around an image, or of each tile (Idefics 3); empty: none
  std::string whole;        ///< Idefics 3: before the whole image
  std::string row_end;      ///< Pixtral: after each row but the last
  /// Tokens that the chat template writes around the placeholder.
  std::vector<std::string> around;
  /// The id of `feature` by config.json; -1: it does not say.
  int64_t feature_id = -1;

  /// Each text once, without empty ones: none of these tokens is what a model should write.
  std::vector<std::string> tokens() const;
};

/// The texts that a model's folder names, else the processors' defaults: keys of tokenizer_config.json (also in `extra_special_tokens`),
/// then of processor_config.json.
/// @throws DataError for a file that is damaged
ImagePrompt read_prompt(const std::filesystem::path& folder, ProcessorKind kind);

/// What replaces the placeholder of an image. It has `feature` plan.num_tokens times.
/// @param plan of `plan_image` with the same kind of processor
/// @throws DataError if the plan has no number of tokens, which the model's files do not say
std::string text_of_image(const ImagePrompt& prompt, const ImagePlan& plan);

/// The texts of the tokens with which a model writes videos.
struct VideoPrompt {
  VideoKind kind = VideoKind::kQwen2Vl;
  std::string placeholder;  ///< what the chat template writes for a video
  std::string feature;      ///< the token whose positions get the features of frames
  std::string begin, end;   ///< around a group of frames; empty: none
  std::string whole;        ///< SmolVLM2: before a frame
  /// The id of `feature` by config.json; -1: it does not say.
  int64_t feature_id = -1;

  /// As of ImagePrompt, without a placeholder that is no token.
  std::vector<std::string> tokens() const;
};

/// As `read_prompt`.
VideoPrompt read_video_prompt(const std::filesystem::path& folder, VideoKind kind);

/// Frames a second where nothing says how many: transformers'.
inline constexpr double kUsualFramesPerSecond = 24;

/// What replaces the placeholder of a video: the texts of its groups of frames, one after the other. Each has `feature` plan.num_tokens
/// times; kQwen3Vl and kSmolVlm write the time before each group.
/// @param plan of `plan_frames`   @param seconds when each frame is
std::vector<std::string> texts_of_video(const VideoPrompt& prompt, const VideoProcessor& processor,
                                        const ImagePlan& plan, std::span<const double> seconds);

/// "two hundred and one", as the package num2words writes English.   @param number from 0
std::string in_words(int64_t number);

}  // namespace sftrun::images
