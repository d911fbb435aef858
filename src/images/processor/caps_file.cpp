#include "sftrun/images/caps_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/images/video.h"

namespace sftrun::images {

namespace {

namespace fs = std::filesystem;
using LimitsJson = nlohmann::ordered_json;

constexpr const char* kCapsFile = "sftrun_images.json";
constexpr const char* kImageFile = "preprocessor_config.json";
constexpr const char* kVideoFile = "video_preprocessor_config.json";
constexpr const char* kBothFile = "processor_config.json";

constexpr std::pair<const char*, int64_t ImageCaps::*> kCapKeys[] = {
    {"max_image_pixels", &ImageCaps::max_pixels}, {"image_longest_edge", &ImageCaps::longest_edge}};

LimitsJson read_limits_json(const fs::path& file) {
  auto value = parse_python_json<LimitsJson>(read_text_file(file));
  if (!value.is_object())
    throw DataError("not a JSON object", file.string(), "copy or download the file again");
  return value;
}

void write_limits_json(const fs::path& file, const LimitsJson& value) {
  write_file_atomically(file, dump_python_json(value, 2) + "\n");
}

/// `size` where the kind resizes to a number of pixels.
void put_pixel_limits(const SizeRule& size, LimitsJson& settings) {
  settings["size"] = {{"shortest_edge", size.shortest_edge}, {"longest_edge", size.longest_edge}};
  // Older files name them so, and they count before `size`.
  if (settings.contains("min_pixels")) settings["min_pixels"] = size.shortest_edge;
  if (settings.contains("max_pixels")) settings["max_pixels"] = size.longest_edge;
}

void put_side_limits(const SizeRule& size, LimitsJson& settings) {
  if (size.longest_edge > 0)
    settings["size"] = {{"longest_edge", size.longest_edge}};
  else
    settings["size"] = {{"height", size.height}, {"width", size.width}};
}

/// @param processor with limits that are lowered
void put_image_limits(const ImageProcessor& processor, const ImageCaps& caps,
                      LimitsJson& settings) {
  switch (processor.kind) {
    case ProcessorKind::kQwen2Vl:
      if (caps.max_pixels > 0) put_pixel_limits(processor.size, settings);
      return;
    case ProcessorKind::kGemma4:
      settings["max_soft_tokens"] = processor.max_soft_tokens;
      return;
    case ProcessorKind::kIdefics3:
    case ProcessorKind::kPixtral:
      return put_side_limits(processor.size, settings);
    case ProcessorKind::kInternVl:
      settings["min_patches"] = processor.min_patches;
      settings["max_patches"] = processor.max_patches;
      return;
    default:  // with_caps refuses them
      return;
  }
}

/// Calls `change` with the settings of images, or of videos, in a folder's file.
/// @param file where they are if processor_config.json does not have them   @param key in processor_config.json
/// @return whether they are anywhere
template <class Change>
bool change_settings(const fs::path& folder, const char* file, const char* key,
                     const Change& change) {
  const fs::path both = folder / kBothFile;
  if (has_optional_file(both)) {
    LimitsJson whole = read_limits_json(both);
    const auto nested = whole.find(key);
    if (nested != whole.end() && nested->is_object()) {
      change(*nested);
      write_limits_json(both, whole);
      return true;
    }
  }
  if (!has_optional_file(folder / file)) return false;
  LimitsJson settings = read_limits_json(folder / file);
  change(settings);
  write_limits_json(folder / file, settings);
  return true;
}

/// Settings of videos in the file of images get a file of their own: the two have other limits.
/// @param change puts the limits of videos
template <class Change>
void part_videos(const fs::path& folder, const fs::path& model, const VideoProcessor& videos,
                 const Change& change) {
  LimitsJson settings = read_limits_json(model / kImageFile);
  settings["video_processor_type"] = videos.row().type;
  change(settings);
  write_limits_json(folder / kVideoFile, settings);
}

/// @param images of the model, without limits
void lower_video_limits(const fs::path& folder, const fs::path& model, const ImageProcessor& images,
                        const ImageCaps& caps) {
  VideoProcessor videos;
  try {
    videos = with_caps(read_video_processor(model, images), caps);
  } catch (const DataError&) {  // the model reads none
    return;
  }
  const bool changes = videos.kind == VideoKind::kQwen2Vl && caps.max_pixels > 0;
  const auto change = [&](LimitsJson& settings) {
    if (changes) put_pixel_limits(videos.frame.size, settings);
  };
  if (change_settings(folder, kVideoFile, "video_processor", change)) return;
  if (has_optional_file(model / kImageFile)) part_videos(folder, model, videos, change);
}

}  // namespace

ImageCaps read_caps(const fs::path& folder) {
  ImageCaps caps;
  const fs::path file = folder / kCapsFile;
  if (!has_optional_file(file)) return caps;
  const LimitsJson limits = read_limits_json(file);
  for (const auto& [key, cap] : kCapKeys) {
    const auto found = limits.find(key);
    if (found == limits.end()) continue;
    if (!found->is_number_integer() || found->get<int64_t>() < 1)
      throw DataError(fmt::format("the file is damaged: `{}` is not a positive integer: {}", key,
                                  excerpt(found->dump())),
                      file.string(), "copy or download the adapter or model again");
    caps.*cap = found->get<int64_t>();
  }
  return caps;
}

void write_caps(const fs::path& folder, const ImageCaps& caps) {
  LimitsJson limits;
  for (const auto& [key, cap] : kCapKeys)
    if (caps.*cap > 0) limits[key] = caps.*cap;
  if (caps.any()) write_limits_json(folder / kCapsFile, limits);
}

std::string words_of(const ImageCaps& caps) {
  std::vector<std::string> words;
  for (const auto& [key, cap] : kCapKeys)
    if (caps.*cap > 0) words.push_back(fmt::format("data.{} {}", key, caps.*cap));
  return join(words, ", ");
}

void lower_limits(const fs::path& folder, const fs::path& model, const ImageCaps& caps) {
  if (!caps.any()) return;
  const ImageProcessor images = read_processor(model), lowered = with_caps(images, caps);
  change_settings(folder, kImageFile, "image_processor",
                  [&](LimitsJson& settings) { put_image_limits(lowered, caps, settings); });
  lower_video_limits(folder, model, images, caps);
}

CapUse unwritten_limits(const ImageProcessor& processor, const ImageCaps& caps) {
  CapUse unwritten;
  unwritten.longest_edge = caps.longest_edge > 0 && processor.kind == ProcessorKind::kQwen2Vl;
  return unwritten;
}

}  // namespace sftrun::images
