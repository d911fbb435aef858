#include <algorithm>

#include "setting.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/images/video.h"

namespace sftrun::images {

namespace {

using VideoJson = nlohmann::json;

VideoJson object_of_file(const std::filesystem::path& file) {
  VideoJson value = parse_python_json(read_text_file(file));
  if (!value.is_object())
    throw DataError("not a JSON object", file.string(), "download or copy the file again");
  return value;
}

/// The settings of videos, where they are, and of which model.
struct VideoSettings {
  VideoJson values;
  std::string path, prefix;
  std::string model_type;

  std::string name_of(std::string_view key) const { return prefix + std::string(key); }
};

VideoSettings video_settings_of(const std::filesystem::path& folder) {
  VideoSettings settings;
  if (has_optional_file(folder / "config.json"))
    settings.model_type = text_under(object_of_file(folder / "config.json"), "model_type");
  const std::filesystem::path processor = folder / "processor_config.json";
  if (has_optional_file(processor)) {
    const VideoJson whole = object_of_file(processor);
    const auto nested = whole.find("video_processor");
    if (nested != whole.end() && nested->is_object()) {
      settings.values = *nested, settings.path = processor.string();
      settings.prefix = "video_processor.";
      return settings;
    }
  }
  for (const char* name : {"video_preprocessor_config.json", "preprocessor_config.json"}) {
    if (!has_optional_file(folder / name)) continue;
    settings.values = object_of_file(folder / name), settings.path = (folder / name).string();
    return settings;
  }
  throw DataError("the model's directory has no video processor", folder.string(),
                  "copy video_preprocessor_config.json from the model's repository");
}

/// The class that transformers takes. An image processor's name is that of a class for videos only without an ending.
std::string type_of_videos(const VideoSettings& settings) {
  std::string type = text_under(settings.values, "video_processor_type");
  if (!type.empty()) return type;
  type = text_under(settings.values, "image_processor_type");
  constexpr std::string_view kImages = "ImageProcessor";
  if (const size_t at = type.find(kImages); at != std::string::npos)
    type.replace(at, kImages.size(), "VideoProcessor");
  for (const VideoProcessorRow& row : kVideoProcessors)
    if (row.type == type) return type;
  for (const VideoProcessorRow& row : kVideoProcessors)
    if (row.model_types.contains(settings.model_type)) return std::string(row.type);
  return {};
}

const VideoProcessorRow& video_row_of(const VideoSettings& settings, const ImageProcessor& images) {
  const std::string type = type_of_videos(settings);
  for (const VideoProcessorRow& row : kVideoProcessors)
    if (row.type == type && row.frame == images.kind) return row;
  const std::string what =
      type.empty() ? fmt::format("videos are not read for models with the image processor of {}",
                                 images.row().family)
                   : fmt::format("the video processor \"{}\" is not supported", excerpt(type));
  throw DataError(what, settings.path, "give the frames as images");
}

constexpr std::string_view kEveryVideoKey[] = {"do_resize",      "resample",     "do_rescale",
                                               "rescale_factor", "do_normalize", "image_mean",
                                               "image_std"};

/// What has no effect on values of frames: it chooses frames of decoded videos, or is of a call.
constexpr std::string_view kPassedOverKeys[] = {"video_processor_type",
                                                "do_sample_frames",
                                                "fps",
                                                "num_frames",
                                                "min_frames",
                                                "max_frames",
                                                "max_duration",
                                                "video_sampling",
                                                "return_metadata",
                                                "video_metadata",
                                                "use_token_compression",
                                                "do_pad",
                                                "do_image_splitting",
                                                "cap_pixels_per_frame",
                                                "max_video_tokens"};

template <class Keys>
bool is_among(const Keys& keys, std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

void read_video_key(const VideoSettings& settings, std::string_view key, VideoProcessor& video) {
  const auto found = settings.values.find(key);
  if (found == settings.values.end() || found->is_null()) return;
  const Setting setting(*found, settings.name_of(key), settings.path);
  if (key == "cap_pixels_per_frame") {
    video.cap_pixels_per_frame = setting.boolean();
  } else if (key == "max_video_tokens") {
    video.max_video_tokens = setting.integer(1, int64_t{1} << 20);
  } else {
    reader_of(key)(setting, video.frame);
  }
}

/// SmolVLM: the size of `video_sampling` counts if there is no other.
void read_sampling_size(const VideoSettings& settings, VideoProcessor& video) {
  const auto sampling = settings.values.find("video_sampling");
  const auto size = settings.values.find("size");
  if (video.kind != VideoKind::kSmolVlm || sampling == settings.values.end() ||
      !sampling->is_object() || (size != settings.values.end() && !size->is_null()))
    return;
  const auto own = sampling->find("video_size");
  if (own == sampling->end() || own->is_null()) return;
  video.frame.size = Setting(*own, settings.name_of("video_sampling.video_size"), settings.path)
                         .size(video.frame.row().default_to_square);
}

void refuse_unknown_video_keys(const VideoSettings& settings, const VideoProcessor& video) {
  for (const auto& [key, value] : settings.values.items()) {
    if (value.is_null() || video.row().keys.contains(key) || is_among(kEveryVideoKey, key) ||
        is_among(kPassedOverKeys, key) || !reason_to_ignore(video.frame.kind, key).empty())
      continue;
    throw DataError(fmt::format("`{}` is not known for the video processor {}",
                                settings.name_of(excerpt(key)), video.row().type),
                    settings.path, "remove the key if the model's results do not depend on it");
  }
}

void require_video_size(const VideoProcessor& video) {
  const SizeRule& size = video.frame.size;
  const bool is_smol = video.kind == VideoKind::kSmolVlm;
  const bool has_size = is_smol ? size.longest_edge > 0 || size.is_exact()
                                : size.shortest_edge > 0 && size.longest_edge > 0;
  if (!has_size)
    throw DataError("`size` does not say how to resize frames", video.frame.where,
                    is_smol ? "it needs longest_edge, or height and width"
                            : "it needs shortest_edge and longest_edge, the least and the most "
                              "pixels");
}

/// torchvision's bilinear resizing depends on the machine.
void require_video_filter(const VideoProcessor& video) {
  const Filter filter = video.frame.resample;
  const bool is_like_bicubic = filter == Filter::kBicubic || filter == Filter::kLanczos;
  if (video.frame.do_resize && !is_like_bicubic)
    throw DataError(
        fmt::format("`resample` is {}, which is not supported for videos", name_of(filter)),
        video.frame.where, "set it to 3 (bicubic)");
}

}  // namespace

VideoProcessor read_video_processor(const std::filesystem::path& folder,
                                    const ImageProcessor& images) {
  const VideoSettings settings = video_settings_of(folder);
  const VideoProcessorRow& row = video_row_of(settings, images);
  VideoProcessor video;
  video.kind = row.kind;
  video.frame.kind = row.frame;
  video.frame.where = settings.path;
  row.defaults(video);
  for (const std::string_view key : kEveryVideoKey) read_video_key(settings, key, video);
  for (const std::string_view key : row.keys) read_video_key(settings, key, video);
  read_sampling_size(settings, video);
  refuse_unknown_video_keys(settings, video);
  require_video_size(video);
  require_video_filter(video);
  video.frame.image_seq_length = images.image_seq_length;
  return video;
}

}  // namespace sftrun::images
