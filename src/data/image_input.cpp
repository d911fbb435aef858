#include "sftrun/data/image_input.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"

namespace sftrun::data {
namespace {

bool names_image_processor(const std::filesystem::path& file) {
  if (!has_optional_file(file)) return false;
  const auto settings = parse_python_json(read_text_file(file));
  return settings.is_object() && settings.contains("image_processor") &&
         !settings["image_processor"].is_null();
}

/// Errors name the settings.
images::ImageProcessor with_named_caps(images::ImageProcessor processor,
                                       const images::ImageCaps& caps) {
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
  for (const char* name : {"preprocessor_config.json", "processor_config.json",
                           "tokenizer_config.json", "config.json"})
    fingerprint.add(has_optional_file(folder / name) ? read_text_file(folder / name)
                                                     : std::string());
  return fingerprint.hex();
}

void find_tokens(ImageInput& input, const tokenizer::Tokenizer& tokenizer,
                 const std::string& folder) {
  for (const std::string& token : input.prompt.tokens())
    if (const auto id = tokenizer.token_to_id(token)) input.tokens.push_back(*id);
  std::sort(input.tokens.begin(), input.tokens.end());
  const std::string& text = input.prompt.feature;
  const auto id = tokenizer.token_to_id(text);
  if (!id || !tokenizer.is_added(*id))
    throw DataError(fmt::format("the tokenizer has no token `{}`, which stands for images", text),
                    folder,
                    "copy tokenizer.json and tokenizer_config.json from the model's repository");
  const int64_t by_model = input.prompt.feature_id;
  if (by_model >= 0 && by_model != *id)
    throw DataError(fmt::format("the token `{}` for images has the id {} in the tokenizer, and "
                                "config.json says {}",
                                text, *id, by_model),
                    folder, "copy the tokenizer's files and config.json from the same repository");
  input.feature = *id;
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
    throw ConfigError("the model's folder has no files of an image processor", where,
                      "copy preprocessor_config.json from the model's repository");
}

images::ImageCaps image_caps(const config::DataConfig& data) {
  return {.max_pixels = data.max_image_pixels, .longest_edge = data.image_longest_edge};
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
  if (!has_image_processor(folder)) return nullptr;
  auto input = std::make_shared<ImageInput>();
  input->fingerprint =
      fmt::format("{} {} {}", fingerprint_of_files(folder), caps.max_pixels, caps.longest_edge);
  try {
    input->processor = with_named_caps(images::read_processor(folder), caps);
    input->prompt = images::read_prompt(folder, input->processor.kind);
    find_tokens(*input, tokenizer, folder.string());
  } catch (const DataError& error) {
    input->refusal = error;
  }
  return input;
}

}  // namespace sftrun::data
