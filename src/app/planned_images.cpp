#include "planned_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/dataset.h"
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

std::optional<PlannedImages> planned_images(const ImageFlags& flags) {
  if (flags.of_sequence == 0) return std::nullopt;
  const auto size = read_size(flags.size);
  if (!size)
    throw ConfigError(fmt::format("`{}` is no size of an image", flags.size),
                      "--image-size on the command line",
                      "write width and height in pixels: 1024x768");
  return PlannedImages{
      .of_sequence = flags.of_sequence, .width = size->first, .height = size->second};
}

namespace {

/// Images as the processor of a model's folder cuts them for its tower.
class ImagesOfModel {
 public:
  ImagesOfModel(const std::filesystem::path& model, const spec::ArchSpec& arch,
                const config::RunConfig& config)
      : processor_(images::with_caps(images::read_processor(model), data::image_caps(config.data))),
        counter_(processor_, arch.vision->patches.side) {}

  int64_t tokens(int64_t width, int64_t height) const {
    return images::plan_image(processor_, width, height).num_tokens;
  }
  const data::ImageLoad& load(int64_t width, int64_t height) { return counter_.of(width, height); }

 private:
  images::ImageProcessor processor_;
  data::ImageCounter counter_;
};

}  // namespace

plan::ImagesOfBin images_of_bin(const PlannedImages& images, const std::filesystem::path& model,
                                const spec::ArchSpec& arch, const config::RunConfig& config) {
  const std::string where = "--images on the command line";
  data::require_image_side(arch.vision.has_value(), model, where);
  ImagesOfModel of_model(model, arch, config);
  const int64_t tokens = images.of_sequence * of_model.tokens(images.width, images.height);
  if (tokens > config.model.max_seq_len) {
    throw ConfigError(fmt::format("{} of {} x {} pixels {} {}, and a sequence has {}",
                                  counted(images.of_sequence, "image"), images.width, images.height,
                                  images.of_sequence == 1 ? "has" : "have",
                                  counted(tokens, "token"), config.model.max_seq_len),
                      where, "plan for fewer or smaller images, or raise model.max_seq_len");
  }
  const data::ImageLoad& image = of_model.load(images.width, images.height);
  return plan::ImagesOfBin::of({.tiles = images.of_sequence * image.tiles,
                                .patches = images.of_sequence * image.patches,
                                .longest_tile = image.longest_tile},
                               /*bins=*/1);
}

namespace {

bool begin_with_images(const config::RunConfig& config) {
  try {
    return data::begins_with_images(config, config.data.train, /*is_validation=*/false);
  } catch (const DataError&) {  // which the run will report
    return false;
  }
}

}  // namespace

void plan_images_of_data(const config::RunConfig& config, const std::filesystem::path& model,
                         const spec::ArchSpec& arch, plan::RunDevices& devices) {
  const bool reads_images = arch.vision && is_folder(model) && data::has_image_processor(model);
  const bool has_images = reads_images && begin_with_images(config);
  devices.tower = plan::TowerUse::of(config.tuning, arch, has_images);
  if (!has_images) return;
  constexpr int64_t kUsualSide = 1024;  // pixels
  const data::ImageLoad image = ImagesOfModel(model, arch, config).load(kUsualSide, kUsualSide);
  const int64_t side = arch.vision->merger.side;
  const int64_t patches = config.model.max_seq_len * side * side;
  const int64_t tile = std::max<int64_t>(1, image.patches / std::max<int64_t>(1, image.tiles));
  devices.images = plan::ImagesOfBin::of({.tiles = (patches + tile - 1) / tile,
                                          .patches = patches,
                                          .longest_tile = std::min(patches, image.longest_tile)},
                                         /*bins=*/1);
}

}  // namespace sftrun::app
