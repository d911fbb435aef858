#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/toy_model.h"
#include "sftrun/data/image_input.h"

/// The text side of a model with images in small: tests/data/toy_model.h, and an image processor.
namespace sftrun::test {

/// ChatML over parts of texts and images.
/// @param image what it writes for an image   @param video for a video; empty: it writes none
inline std::string chat_ml_of_parts(const std::string& image, const std::string& video = {}) {
  const std::string of_videos =
      video.empty() ? "" : "{%- elif part.type == 'video' -%}{{ '" + video + "' }}";
  return "{%- for message in messages -%}{{ '<|im_start|>' ~ message.role ~ '\\n' }}"
         "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
         "{%- for part in message.content -%}{%- if part.type == 'image' -%}{{ '" +
         image + "' }}" + of_videos +
         "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
         "{{ '<|im_end|>' ~ '\\n' }}{%- endfor -%}"
         "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";
}

struct VisionFamily {
  std::string image;                ///< what the template writes for an image
  std::string video = {};           ///< for a video
  std::vector<std::string> tokens;  ///< with the ids from 260 on
  nlohmann::ordered_json files;     ///< of the model's folder, by name
};

/// Patches of 4 x 4 pixels, 2 x 2 of them for a token: an image of 16 x 8 pixels has two tokens.
inline VisionFamily toy_qwen() {
  return {.image = "<|vision_start|><|image_pad|><|vision_end|>",
          .tokens = {"<|vision_start|>", "<|vision_end|>", "<|image_pad|>"},
          .files = {{"preprocessor_config.json",
                     {{"image_processor_type", "Qwen2VLImageProcessor"},
                      {"patch_size", 4},
                      {"merge_size", 2},
                      {"temporal_patch_size", 2},
                      {"min_pixels", 64},
                      {"max_pixels", 65536}}},
                    {"config.json", {{"model_type", "qwen2_5_vl"}, {"image_token_id", 262}}}}};
}
inline constexpr int32_t kVisionStart = 260, kVisionEnd = 261, kImagePad = 262;

/// The same, with videos: of 16 x 8 pixels, too, a pair of frames has two tokens, and a second four positions on the axis of time.
/// @param model_type also "qwen3_vl"
inline VisionFamily toy_qwen_of_videos(const std::string& model_type = "qwen2_5_vl") {
  VisionFamily family = toy_qwen();
  family.video = "<|vision_start|><|video_pad|><|vision_end|>";
  family.tokens.push_back("<|video_pad|>");
  family.files["config.json"] = {{"model_type", model_type},
                                 {"image_token_id", 262},
                                 {"video_token_id", 263},
                                 {"vision_config", {{"tokens_per_second", 4}}}};
  family.files["video_preprocessor_config.json"] = {
      {"patch_size", 4},
      {"size", {{"shortest_edge", 64}, {"longest_edge", 65536}}},
      {"do_sample_frames", true},
      {"fps", 2}};
  return family;
}
inline constexpr int32_t kVideoPad = 263;

/// Three tokens for each image.
inline VisionFamily toy_gemma3() {
  return {.image = "<start_of_image>",
          .tokens = {"<start_of_image>", "<end_of_image>", "<image_soft_token>"},
          .files = {{"preprocessor_config.json",
                     {{"image_processor_type", "Gemma3ImageProcessor"},
                      {"size", {{"height", 8}, {"width", 8}}}}},
                    {"processor_config.json", {{"image_seq_length", 3}}},
                    {"config.json", {{"model_type", "gemma3"}, {"image_token_index", 262}}}}};
}

/// Four tokens for each image.
inline VisionFamily toy_llava() {
  return {.image = "<image>\\n",
          .tokens = {"<image>"},
          .files = {{"preprocessor_config.json",
                     {{"image_processor_type", "CLIPImageProcessor"},
                      {"size", {{"shortest_edge", 8}}},
                      {"crop_size", {{"height", 8}, {"width", 8}}}}},
                    {"processor_config.json",
                     {{"patch_size", 4},
                      {"vision_feature_select_strategy", "default"},
                      {"num_additional_image_tokens", 1}}},
                    {"config.json", {{"model_type", "llava"}, {"image_token_index", 260}}}}};
}

/// Tiles of 8 x 8 pixels with two tokens.
inline VisionFamily toy_smolvlm() {
  return {.image = "<image>",
          .tokens = {"<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>",
                     "<row_1_col_2>"},
          .files = {{"preprocessor_config.json",
                     {{"image_processor_type", "SmolVLMImageProcessor"},
                      {"size", {{"longest_edge", 16}}},
                      {"max_image_size", {{"longest_edge", 8}}}}},
                    {"processor_config.json", {{"image_seq_len", 2}}},
                    {"config.json", {{"model_type", "smolvlm"}, {"image_token_id", 260}}}}};
}

/// @param chat_template empty: ChatML over parts; may be the name of a built-in one
inline data::TextModel toy_vision_model(const VisionFamily& family = toy_qwen(),
                                        const std::string& chat_template = {}) {
  const TemporaryDirectory dir;
  write_file_atomically(dir / "tokenizer.json", tokenizer_json(false, false, family.tokens).dump());
  write_file_atomically(dir / "tokenizer_config.json",
                        R"({"bos_token": "<s>", "eos_token": "</s>"})");
  for (const auto& [name, content] : family.files.items())
    write_file_atomically(dir / name, content.dump());
  data::TextModel model = data::make_text_model(
      tokenizer::Tokenizer::from_directory(dir.path()), std::nullopt,
      {.bos_token = "<s>", .eos_token = "</s>"},
      chat_template.empty() ? chat_ml_of_parts(family.image, family.video) : chat_template,
      {kImEnd});
  data::set_images(model, data::image_input_of(dir.path(), *model.tokenizer));
  return model;
}

}  // namespace sftrun::test
