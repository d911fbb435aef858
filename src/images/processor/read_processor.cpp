#include <algorithm>

#include "setting.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::images {

namespace {

using nlohmann::json;

constexpr const char* kProcessorFile = "processor_config.json";
constexpr const char* kPreprocessorFile = "preprocessor_config.json";
constexpr const char* kModelFile = "config.json";

/// @return an empty object if the folder has no such file
json optional_object(const std::filesystem::path& file) {
  if (!has_optional_file(file)) return json::object();
  json value = parse_python_json(read_text_file(file));
  if (!value.is_object())
    throw DataError("not a JSON object", file.string(), "download or copy the file again");
  return value;
}

/// What a model's folder says of its images.
struct ProcessorFiles {
  json processor, preprocessor, model;
  bool has_preprocessor;
  std::string processor_path, preprocessor_path, model_path;

  explicit ProcessorFiles(const std::filesystem::path& folder)
      : processor(optional_object(folder / kProcessorFile)),
        preprocessor(optional_object(folder / kPreprocessorFile)),
        model(optional_object(folder / kModelFile)),
        has_preprocessor(has_optional_file(folder / kPreprocessorFile)),
        processor_path((folder / kProcessorFile).string()),
        preprocessor_path((folder / kPreprocessorFile).string()),
        model_path((folder / kModelFile).string()) {
    if (has_nested() && !processor.at("image_processor").is_object())
      throw DataError("`image_processor` must be a JSON object", processor_path);
    if (!has_nested() && !has_preprocessor)
      throw DataError("the model's directory has no image processor", folder.string(),
                      "copy preprocessor_config.json, or processor_config.json with "
                      "`image_processor`, from the model's repository");
  }

  bool has_nested() const {
    return processor.contains("image_processor") && !processor.at("image_processor").is_null();
  }
  const json& settings() const {
    return has_nested() ? processor.at("image_processor") : preprocessor;
  }
  const std::string& settings_path() const {
    return has_nested() ? processor_path : preprocessor_path;
  }
  std::string name_of_setting(const std::string& key) const {
    return has_nested() ? "image_processor." + key : key;
  }
};

/// Without the ending that says which library a class uses.
std::string_view without_ending(std::string_view type) {
  for (const std::string_view ending : {"Fast", "Pil"})
    if (type.ends_with(ending)) return type.substr(0, type.size() - ending.size());
  return type;
}

std::string named_type(const ProcessorFiles& files) {
  std::string type = text_under(files.settings(), "image_processor_type");
  if (!type.empty()) return type;
  type = text_under(files.settings(), "feature_extractor_type");
  constexpr std::string_view kOldEnding = "FeatureExtractor";
  if (const size_t at = type.find(kOldEnding); at != std::string::npos)
    return type.replace(at, kOldEnding.size(), "ImageProcessor");
  return text_under(files.model, "image_processor_type");
}

std::string supported_types() {
  std::vector<std::string> types;
  for (const ProcessorRow& row : kProcessors)
    types.insert(types.end(), row.types.begin(), row.types.end());
  return joined(types, " and ");
}

const ProcessorRow& row_of(const ProcessorFiles& files) {
  const std::string type = named_type(files), model = text_under(files.model, "model_type");
  for (const ProcessorRow& row : kProcessors)
    if (type.empty() ? row.model_types.contains(model) : row.types.contains(without_ending(type)))
      return row;
  if (!type.empty())
    throw DataError(fmt::format("the image processor \"{}\" is not supported", excerpt(type)),
                    files.settings_path(), "supported: " + supported_types());
  throw DataError(
      model.empty() ? std::string("`image_processor_type` is missing")
                    : fmt::format("`image_processor_type` is missing, and a model of type \"{}\" "
                                  "has none that is supported",
                                  excerpt(model)),
      files.settings_path(), "name the image processor; supported: " + supported_types());
}

constexpr std::string_view kCommonKeys[] = {"do_resize",      "resample",     "do_rescale",
                                            "rescale_factor", "do_normalize", "image_mean",
                                            "image_std"};

void refuse_unknown_keys(const ProcessorFiles& files, const ImageProcessor& processor) {
  for (const auto& [key, value] : files.settings().items()) {
    if (value.is_null() || processor.row().keys.contains(key) ||
        std::find(std::begin(kCommonKeys), std::end(kCommonKeys), key) != std::end(kCommonKeys) ||
        !reason_to_ignore(processor.kind, key).empty())
      continue;
    throw DataError(fmt::format("`{}` is not known for the image processor of {}",
                                files.name_of_setting(excerpt(key)), processor.row().family),
                    files.settings_path(),
                    "remove the key if the model's results do not depend on it");
  }
}

void read_settings(const ProcessorFiles& files, ImageProcessor& processor) {
  const auto read = [&](std::string_view name) {
    const std::string key(name);
    const auto found = files.settings().find(key);
    if (found == files.settings().end() || found->is_null()) return;
    reader_of(key)({*found, files.name_of_setting(key), processor.where}, processor);
  };
  for (const std::string_view key : kCommonKeys) read(key);
  for (const std::string_view key : processor.row().keys) read(key);
}

/// A number for the text, of the first of some places that has it.
class TextNumbers {
 public:
  TextNumbers(const ProcessorFiles& files, ImageProcessor& processor)
      : files_(files), processor_(processor) {}

  void read() {
    switch (processor_.row().tokens) {
      case TokenRule::kMergedPatches:
        return;
      case TokenRule::kPerTile:
        return read_sequence_length();
      case TokenRule::kPatchGrid:
      case TokenRule::kUnpadded:
        return read_patch_grid();
    }
  }

 private:
  std::optional<int64_t> of_processor(const char* key) const {
    return number(files_.processor, key, files_.processor_path, "");
  }
  std::optional<int64_t> of_model(const char* key) const {
    return number(files_.model, key, files_.model_path, "");
  }
  std::optional<int64_t> of_tower(const char* key) const {
    const auto tower = files_.model.find("vision_config");
    if (tower == files_.model.end() || !tower->is_object()) return std::nullopt;
    return number(*tower, key, files_.model_path, "vision_config.");
  }
  static std::optional<int64_t> number(const json& object, const char* key, const std::string& path,
                                       const std::string& prefix) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return std::nullopt;
    constexpr int64_t kMost = 1 << 20;
    const Setting setting(*found, prefix + key, path);
    return found->is_object() ? setting.square_side(kMost) : setting.integer(0, kMost);
  }

  void read_sequence_length() {
    const bool is_idefics3 = processor_.kind == ProcessorKind::kIdefics3;
    std::optional<int64_t> length =
        of_processor(is_idefics3 ? "image_seq_len" : "image_seq_length");
    if (!length)
      length = is_idefics3
                   ? of_shuffled_patches()
                   : of_model(processor_.kind == ProcessorKind::kGemma3 ? "mm_tokens_per_image"
                                                                        : "image_seq_length");
    if (length) processor_.image_seq_length = *length;
  }

  /// Idefics 3: patches of a tile over the square of `scale_factor`.
  std::optional<int64_t> of_shuffled_patches() const {
    const auto size = of_tower("image_size"), patch = of_tower("patch_size");
    if (!size || !patch || *patch < 1) return std::nullopt;
    constexpr int64_t kScale = 2;  // the class's
    const int64_t scale = std::max<int64_t>(of_model("scale_factor").value_or(kScale), 1);
    return (*size / *patch) * (*size / *patch) / (scale * scale);
  }

  void read_patch_grid() {
    std::optional<int64_t> patch = of_processor("patch_size");
    if (!patch) patch = of_tower("patch_size");
    if (patch) processor_.patch_size = *patch;
    if (processor_.kind == ProcessorKind::kPixtral) return read_merged_patch();
    const std::string key = "vision_feature_select_strategy";
    std::string strategy = text_under(files_.processor, key.c_str());
    if (strategy.empty()) strategy = text_under(files_.model, key.c_str());
    if (strategy.empty()) return;
    const auto tower = files_.model.find("vision_config");
    const bool has_class_token = tower != files_.model.end() && tower->is_object() &&
                                 text_under(*tower, "model_type") == "clip_vision_model";
    processor_.extra_tokens =
        of_processor("num_additional_image_tokens").value_or(has_class_token ? 1 : 0) -
        (strategy == "default" ? 1 : 0);
  }

  void read_merged_patch() {
    std::optional<int64_t> merge = of_processor("spatial_merge_size");
    if (!merge) merge = of_model("spatial_merge_size");
    processor_.patch_size *= merge.value_or(1);
    if (processor_.patch_size < 1)
      throw DataError("`patch_size` times `spatial_merge_size` is 0", files_.processor_path);
  }

  const ProcessorFiles& files_;
  ImageProcessor& processor_;
};

/// What the classes need of `size` to resize at all.
void require_size(const ImageProcessor& processor) {
  const SizeRule& size = processor.size;
  const auto fail = [&](const char* wanted) {
    throw DataError("`size` does not say how to resize images", processor.where,
                    std::string("it needs ") + wanted);
  };
  switch (processor.kind) {
    case ProcessorKind::kQwen2Vl:
      if (size.shortest_edge == 0 || size.longest_edge == 0)
        fail("shortest_edge and longest_edge, the least and the most pixels");
      return;
    case ProcessorKind::kGemma4:
      return;
    case ProcessorKind::kIdefics3:
    case ProcessorKind::kPixtral:
      if (size.longest_edge == 0 && !size.is_exact()) fail("longest_edge, or height and width");
      return;
    case ProcessorKind::kInternVl:
      if (!size.is_exact()) fail("height and width");
      return;
    case ProcessorKind::kLlavaNext:
      if (size.shortest_edge == 0 && !size.is_exact()) fail("shortest_edge, or height and width");
      return;
    default:
      if (size.shortest_edge == 0 && !size.is_exact() && size.max_height == 0)
        fail("shortest_edge, or height and width");
  }
}

void require_colours_of_padding(const ImageProcessor& processor) {
  if (processor.kind != ProcessorKind::kLlava || !processor.do_pad) return;
  for (const double mean : processor.image_mean)
    if (mean < 0 || mean >= 256.0 / 255)
      throw DataError("`image_mean` must be from 0 to 1 where `do_pad` is true", processor.where);
}

}  // namespace

ImageProcessor read_processor(const std::filesystem::path& folder) {
  const ProcessorFiles files(folder);
  const ProcessorRow& row = row_of(files);
  ImageProcessor processor;
  processor.kind = row.kind;
  processor.where = files.settings_path();
  row.defaults(processor);
  read_settings(files, processor);
  refuse_unknown_keys(files, processor);
  require_size(processor);
  require_colours_of_padding(processor);
  TextNumbers(files, processor).read();
  return processor;
}

}  // namespace sftrun::images
