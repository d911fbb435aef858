#include "sftrun/data/image_input.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/data/tower_grid.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/templates/builtin_templates.h"

namespace sftrun::data {
namespace {

bool names_image_processor(const std::filesystem::path& file) {
  if (!has_optional_file(file)) return false;
  const auto settings = parse_python_json(read_text_file(file));
  return settings.is_object() && settings.contains("image_processor") &&
         !settings["image_processor"].is_null();
}

/// Errors name the settings.
template <class Processor>
Processor with_named_caps(Processor processor, const images::ImageCaps& caps) {
  try {
    return images::with_caps(std::move(processor), caps);
  } catch (const ConfigError& error) {
    std::string message = error.message();
    for (const auto& [cap, key] : {std::pair(images::kMaxPixelsCap, "data.max_image_pixels"),
                                   std::pair(images::kLongestEdgeCap, "data.image_longest_edge")})
      if (message.starts_with(cap)) message.replace(0, cap.size(), key);
    throw ConfigError(message, error.where(), error.fix());
  }
}

std::string fingerprint_of_files(const std::filesystem::path& folder) {
  Fingerprint fingerprint;
  for (const char* name : {"preprocessor_config.json", "video_preprocessor_config.json",
                           "processor_config.json", "tokenizer_config.json", "config.json"})
    fingerprint.add(has_optional_file(folder / name) ? read_text_file(folder / name)
                                                     : std::string());
  return fingerprint.hex();
}

/// The id of what stands for features.
/// @param kind "images"   @param by_model by config.json; -1: it does not say
tokenizer::TokenId feature_token(const std::string& text, const char* kind, int64_t by_model,
                                 const tokenizer::Tokenizer& tokenizer, const std::string& folder) {
  const auto id = tokenizer.token_to_id(text);
  if (!id || !tokenizer.is_added(*id))
    throw DataError(fmt::format("the tokenizer has no token `{}`, which stands for {}", text, kind),
                    folder,
                    "copy tokenizer.json and tokenizer_config.json from the model's repository");
  if (by_model >= 0 && by_model != *id)
    throw DataError(fmt::format("the token `{}` for {} has the id {} in the tokenizer, and "
                                "config.json says {}",
                                text, kind, *id, by_model),
                    folder, "copy the tokenizer's files and config.json from the same repository");
  return *id;
}

void add_tokens(const std::vector<std::string>& texts, const tokenizer::Tokenizer& tokenizer,
                std::vector<tokenizer::TokenId>& tokens) {
  for (const std::string& text : texts)
    if (const auto id = tokenizer.token_to_id(text)) tokens.push_back(*id);
  std::sort(tokens.begin(), tokens.end());
}

/// `vision_config` of config.json; null: there is none.
nlohmann::json tower_in(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (!has_optional_file(file)) return {};
  const nlohmann::json model = parse_python_json(read_text_file(file));
  return model.is_object() ? model.value("vision_config", nlohmann::json()) : nlohmann::json();
}

/// Qwen2.5-VL's positions on the axis of time for a second.
int64_t tokens_per_second_of(const std::filesystem::path& folder) {
  constexpr int64_t kOfClass = 4;
  const auto tower = tower_in(folder);
  if (!tower.is_object() || !tower.contains("tokens_per_second")) return kOfClass;
  const auto& number = tower["tokens_per_second"];
  if (!number.is_number_integer() || number.get<int64_t>() < 1)
    throw DataError("`vision_config.tokens_per_second` must be a positive integer",
                    (folder / "config.json").string());
  return number.get<int64_t>();
}

constexpr const char* kCopyProcessor = "copy preprocessor_config.json from the model's repository";

/// Of a model with a vision tower whose folder lacks the processor's files.
std::shared_ptr<const ImageInput> without_processor(const std::filesystem::path& folder) {
  auto input = std::make_shared<ImageInput>();
  input->fingerprint = "none";
  input->refusal = DataError("the model's directory has no files of an image processor",
                             folder.string(), kCopyProcessor);
  return input;
}

/// What SmolVLM2's processor takes for conversations with videos: the template in the model's files writes none.
constexpr std::string_view kSmolVideoTemplate =
    "{{ '<|im_start|>' }}{%- for message in messages -%}"
    "{{ message.role | capitalize }}"
    "{{ ':' if message.content[0].type == 'image' else ': ' }}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'text' -%}{{ part.text }}"
    "{%- elif part.type == 'image' -%}{{ '<image>' }}"
    "{%- elif part.type == 'video' -%}{{ '<video>' }}{%- endif -%}"
    "{%- endfor -%}{{ '<end_of_utterance>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}";

/// What cannot be read is no error until a record has a video.
void find_videos(ImageInput& input, const std::filesystem::path& folder,
                 const tokenizer::Tokenizer& tokenizer, const images::ImageCaps& caps) {
  auto videos = std::make_shared<VideoInput>();
  try {
    videos->processor =
        with_named_caps(images::read_video_processor(folder, input.processor), caps);
    videos->prompt = images::read_video_prompt(folder, videos->processor.kind);
    videos->feature = feature_token(videos->prompt.feature, "videos", videos->prompt.feature_id,
                                    tokenizer, folder.string());
    if (videos->processor.kind == images::VideoKind::kQwen2Vl)
      videos->tokens_per_second = tokens_per_second_of(folder);
    if (videos->processor.kind == images::VideoKind::kSmolVlm)
      videos->chat_template = std::make_shared<const templates::ChatTemplate>(
          kSmolVideoTemplate, "the chat template for videos");
  } catch (const DataError& error) {
    input.video_refusal = error;
    return;
  }
  add_tokens(videos->prompt.tokens(), tokenizer, input.tokens);
  input.videos = std::move(videos);
}

/// What is wrong with config.json is said by who reads the model.
std::shared_ptr<const spec::VisionSpec> tower_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (!has_optional_file(file)) return nullptr;
  try {
    const spec::ArchSpec arch =
        spec::ArchSpec::from_hf_config(parse_python_json(read_text_file(file)), file.string());
    return arch.vision ? std::make_shared<const spec::VisionSpec>(*arch.vision) : nullptr;
  } catch (const DataError&) {
    return nullptr;
  }
}

/// Files of different models are found before a record is read.
void require_same_model(const images::ImageProcessor& processor, const spec::VisionSpec& tower) {
  constexpr int64_t kWidth = 448, kHeight = 336;  // any that processors take
  images::ImagePlan plan;
  try {
    plan = images::plan_image(processor, kWidth, kHeight);
  } catch (const DataError&) {
    return;  // of this size
  }
  tower_grid(processor, tower, plan);
}

}  // namespace

bool has_image_processor(const std::filesystem::path& folder) {
  return has_optional_file(folder / "preprocessor_config.json") ||
         names_image_processor(folder / "processor_config.json");
}

void require_image_side(bool has_tower, const std::filesystem::path& folder,
                        const std::string& where) {
  if (!has_tower)
    throw ConfigError("the model reads text alone", where,
                      "remove it, or name a model with images");
  if (!has_image_processor(folder))
    throw ConfigError("the model's directory has no files of an image processor", where,
                      kCopyProcessor);
}

images::ImageCaps image_caps(const config::DataConfig& data) {
  return {.max_pixels = data.max_image_pixels, .longest_edge = data.image_longest_edge};
}

namespace {

/// With the markers that a template writes around images and videos.
std::string with_markers(const std::vector<std::string>& around, const std::string& placeholder) {
  return around.size() == 2 ? around[0] + placeholder + around[1] : placeholder;
}

/// What the model's own chat template would write for an image.
std::string written_image(const ImageInput& input) {
  const images::ImagePrompt& prompt = input.prompt;
  const std::string text = with_markers(prompt.around, prompt.placeholder);
  switch (prompt.kind) {
    case images::ProcessorKind::kClip:
    case images::ProcessorKind::kSiglip:
    case images::ProcessorKind::kLlava:
    case images::ProcessorKind::kLlavaNext:
    case images::ProcessorKind::kInternVl:
      return text + '\n';  // LLaVA's and InternVL's models were trained with a line break behind it
    default:
      return text;
  }
}

std::string written_video(const ImageInput& input) {
  if (input.videos == nullptr || input.videos->chat_template != nullptr) return {};
  return with_markers(input.prompt.around, input.videos->prompt.placeholder);
}

}  // namespace

void set_images(TextModel& text, std::shared_ptr<const ImageInput> images) {
  text.images = std::move(images);
  if (text.images == nullptr || text.images->refusal || text.chat_template == nullptr) return;
  const std::string builtin = templates::builtin_template_name(text.chat_template->source());
  if (builtin.empty()) return;
  text.chat_template = std::make_shared<const templates::ChatTemplate>(
      templates::builtin_template_with_images(builtin, written_image(*text.images),
                                              written_video(*text.images)),
      "the built-in chat template " + builtin);
}

std::string way_to_smaller_images(const TextModel& model) {
  if (model.images == nullptr || model.images->refusal) return {};
  const images::CapUse use = model.images->processor.row().caps;
  if (use.max_pixels) return ", or set data.max_image_pixels to fewer pixels";
  return use.longest_edge ? ", or set data.image_longest_edge to fewer pixels" : "";
}

std::vector<std::string> idle_image_caps(const TextModel& model, const config::DataConfig& data) {
  std::vector<std::string> warnings;
  if (model.images != nullptr) return warnings;
  for (const auto& [key, cap] : {std::pair("data.max_image_pixels", data.max_image_pixels),
                                 std::pair("data.image_longest_edge", data.image_longest_edge)})
    if (cap > 0)
      warnings.push_back(fmt::format(
          "{} has no effect: the model has no image processor, and reads text alone", key));
  return warnings;
}

std::shared_ptr<const ImageInput> image_input_of(const std::filesystem::path& folder,
                                                 const tokenizer::Tokenizer& tokenizer,
                                                 const images::ImageCaps& caps) {
  if (!has_image_processor(folder))
    return tower_in(folder).is_object() ? without_processor(folder) : nullptr;
  auto input = std::make_shared<ImageInput>();
  input->fingerprint =
      fmt::format("{} {} {}", fingerprint_of_files(folder), caps.max_pixels, caps.longest_edge);
  try {
    input->processor = with_named_caps(images::read_processor(folder), caps);
    input->prompt = images::read_prompt(folder, input->processor.kind);
    add_tokens(input->prompt.tokens(), tokenizer, input->tokens);
    input->feature = feature_token(input->prompt.feature, "images", input->prompt.feature_id,
                                   tokenizer, folder.string());
    input->tower = tower_of(folder);
    if (input->tower) require_same_model(input->processor, *input->tower);
    find_videos(*input, folder, tokenizer, caps);
  } catch (const DataError& error) {
    input->refusal = error;
  }
  return input;
}

}  // namespace sftrun::data
