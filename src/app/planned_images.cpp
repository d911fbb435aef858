#include "planned_images.h"

#include <fmt/format.h>

#include <charconv>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/image_load.h"

namespace sftrun::app {
namespace {

/// "1024x768"; null: another form.
std::optional<std::pair<int64_t, int64_t>> read_size(const std::string& text) {
  constexpr int64_t kMaxSide = 1 << 16;
  const char* const end = text.data() + text.size();
  int64_t width = 0, height = 0;
  const auto [cross, first] = std::from_chars(text.data(), end, width);
  if (first != std::errc() || cross == end || *cross != 'x') return std::nullopt;
  const auto [rest, second] = std::from_chars(cross + 1, end, height);
  const auto is_side = [](int64_t side) { return side >= 1 && side <= kMaxSide; };
  if (second != std::errc() || rest != end || !is_side(width) || !is_side(height))
    return std::nullopt;
  return std::pair(width, height);
}

}  // namespace

std::optional<PlannedImages> planned_images(const MemoryCheckOptions& options) {
  if (options.images == 0) return std::nullopt;
  const auto size = read_size(options.image_size);
  if (!size)
    throw ConfigError(fmt::format("`{}` is no size of an image", options.image_size),
                      "--image-size on the command line",
                      "write width and height in pixels: 1024x768");
  return PlannedImages{.of_sequence = options.images, .width = size->first, .height = size->second};
}

plan::ImagesOfBin images_of_bin(const PlannedImages& images, const std::filesystem::path& model,
                                const spec::ArchSpec& arch, const config::RunConfig& config) {
  const std::string where = "--images on the command line";
  if (!arch.vision || !data::has_image_processor(model)) {
    throw ConfigError(arch.vision ? "the model's folder has no files of an image processor"
                                  : "the model reads text alone",
                      where,
                      arch.vision ? "copy preprocessor_config.json from the model's repository"
                                  : "remove --images, or name a model with images");
  }
  const images::ImageProcessor processor =
      images::with_caps(images::read_processor(model), data::image_caps(config.data));
  const int64_t tokens =
      images.of_sequence * images::plan_image(processor, images.width, images.height).num_tokens;
  if (tokens > config.model.max_seq_len) {
    throw ConfigError(fmt::format("{} of {} x {} pixels {} {}, and a sequence has {}",
                                  counted(images.of_sequence, "image"), images.width, images.height,
                                  images.of_sequence == 1 ? "has" : "have",
                                  counted(tokens, "token"), config.model.max_seq_len),
                      where, "plan for fewer or smaller images, or raise model.max_seq_len");
  }
  const data::ImageLoad image =
      data::ImageCounter(processor, arch.vision->patches.side).of(images.width, images.height);
  return plan::ImagesOfBin::of({.tiles = images.of_sequence * image.tiles,
                                .patches = images.of_sequence * image.patches,
                                .longest_tile = image.longest_tile},
                               /*bins=*/1);
}

}  // namespace sftrun::app
