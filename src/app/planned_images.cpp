#include "planned_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>
#include <vector>

#include "run_check.h"
#include "run_forecast.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/features.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/image_load.h"
#include "sftrun/images/decode.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace {

/// "1024x768"; null: another form.
std::optional<std::pair<int64_t, int64_t>> read_size(const std::string& text) {
  const char* const end = text.data() + text.size();
  int64_t width = 0, height = 0;
  const auto [cross, first] = std::from_chars(text.data(), end, width);
  if (first != std::errc() || cross == end || *cross != 'x') return std::nullopt;
  const auto [rest, second] = std::from_chars(cross + 1, end, height);
  if (second != std::errc() || rest != end || width < 1 || height < 1) return std::nullopt;
  return std::pair(width, height);
}

/// @throws ConfigError for a size that no file may have
void require_within_limits(int64_t width, int64_t height) {
  const images::DecodeLimits limits;
  const auto refuse = [&](int64_t limit, const char* what) {
    throw ConfigError(
        fmt::format("images of {} x {} pixels are above the limit of image files, {} {}", width,
                    height, limit, what),
        "--image-size on the command line", "name a smaller size");
  };
  if (std::max(width, height) > limits.max_side) refuse(limits.max_side, "pixels for a side");
  if (width * height > limits.max_pixels) refuse(limits.max_pixels, "pixels");
}

}  // namespace

std::optional<PlannedImages> planned_images(const ImageFlags& flags) {
  if (flags.of_sequence == 0) return std::nullopt;
  const auto size = read_size(flags.size);
  if (!size)
    throw ConfigError(fmt::format("`{}` is no size of an image", flags.size),
                      "--image-size on the command line",
                      "write width and height in pixels: 1024x768");
  require_within_limits(size->first, size->second);
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

/// Each packed sequence has as many patches as it has if all its tokens are of images.
plan::ImagesOfBin full_of_images(const config::RunConfig& config, const spec::ArchSpec& arch,
                                 ImagesOfModel& of_model) {
  constexpr int64_t kUsualSide = 1024;  // pixels
  const data::ImageLoad& image = of_model.load(kUsualSide, kUsualSide);
  const int64_t side = arch.vision->merger.side;
  const int64_t patches = config.model.max_seq_len * side * side;
  const int64_t tile = std::max<int64_t>(1, image.patches / std::max<int64_t>(1, image.tiles));
  return plan::ImagesOfBin::of({.tiles = (patches + tile - 1) / tile,
                                .patches = patches,
                                .longest_tile = std::min(patches, image.longest_tile)},
                               /*bins=*/1);
}

constexpr int64_t kRecordsRead = 1000;  // as many as decide whether the tower is planned

std::vector<data::DatasetTrial> try_first_records(const config::RunConfig& config,
                                                  const std::filesystem::path& model,
                                                  const spec::ArchSpec& arch) {
  data::TextModel text =
      load_text_model(model, config.model.chat_template, data::image_caps(config.data));
  text.features = data::feature_input_of(arch.projectors, *text.tokenizer);
  std::vector<data::DatasetTrial> trials;
  for (const config::DataSource& source : config.data.train)
    trials.push_back(
        data::try_dataset(config, source, /*is_validation=*/false, text, kRecordsRead));
  return trials;
}

/// The images of each packed sequence of the first epoch, most patches first.
std::vector<data::ImageLoad> loads_of_bins(const config::RunConfig& config,
                                           const std::vector<data::DatasetTrial>& trials,
                                           ImagesOfModel& of_model) {
  std::vector<data::ImageLoad> of_examples, of_bins;
  for (const data::DatasetTrial& trial : trials) {
    for (const auto& sizes : trial.images) {
      data::ImageLoad& load = of_examples.emplace_back();
      for (const auto& [width, height] : sizes) load.add(of_model.load(width, height));
    }
  }
  const data::BatchPlan plan = trial_plan(config, trials, config.data.bin_tokens.value.value_or(0),
                                          /*global_batch_size=*/1);
  for (int64_t bin = 0; bin < plan.steps_per_epoch(0); ++bin) {
    data::ImageLoad& load = of_bins.emplace_back();
    const std::vector<data::Bin> step = plan.global_batch(0, bin);
    for (const int64_t example : step.front()) load.add(of_examples[static_cast<size_t>(example)]);
  }
  std::ranges::stable_sort(of_bins, std::ranges::greater(), &data::ImageLoad::patches);
  return of_bins;
}

/// Of the micro-batch with most patches that may come.
plan::ImagesOfBin largest_of_bins(const config::RunConfig& config,
                                  const std::vector<data::ImageLoad>& of_bins) {
  const auto count = static_cast<size_t>(config.train.batch_size.value.value_or(1));
  data::ImageLoad largest;
  for (size_t bin = 0; bin < std::min(count, of_bins.size()); ++bin) largest.add(of_bins[bin]);
  return plan::ImagesOfBin::of({largest.tiles, largest.patches, largest.longest_tile},
                               static_cast<int64_t>(std::min(count, of_bins.size())));
}

/// "the first 1000 records of a.jsonl and the 7 records of b.jsonl"
std::string describe_records(const std::vector<data::DatasetTrial>& trials) {
  std::vector<std::string> parts;
  for (const data::DatasetTrial& trial : trials)
    parts.push_back(fmt::format("{} of {}",
                                trial.is_whole ? "the " + counted(trial.stats.num_records, "record")
                                               : the_first(trial.stats.num_records, "record"),
                                trial.name));
  return joined(parts, " and ");
}

/// "images: up to 640x480 pixels, at most 2 in an example, in …"; empty: there are none.
std::string describe_images(const std::vector<data::DatasetTrial>& trials) {
  std::pair<int64_t, int64_t> largest;
  size_t most = 0;
  const auto area = [](const std::pair<int64_t, int64_t>& size) {
    return size.first * size.second;
  };
  for (const data::DatasetTrial& trial : trials) {
    for (const auto& sizes : trial.images) {
      most = std::max(most, sizes.size());
      for (const auto& size : sizes)
        if (area(size) > area(largest)) largest = size;
    }
  }
  if (most == 0) return {};
  return fmt::format("images: up to {}x{} pixels, at most {} in an example, in {}", largest.first,
                     largest.second, most, describe_records(trials));
}

}  // namespace

std::string plan_images_of_data(const config::RunConfig& config, const std::filesystem::path& model,
                                const spec::ArchSpec& arch, plan::RunDevices& devices) {
  const bool reads_images = arch.vision && is_folder(model) && data::has_image_processor(model);
  const bool has_images = reads_images && begin_with_images(config);
  devices.tower = plan::TowerUse::of(config.tuning, arch, has_images);
  if (!has_images) return {};
  ImagesOfModel of_model(model, arch, config);
  std::string reason = "no example with images is among the first ones";
  try {
    const std::vector<data::DatasetTrial> trials = try_first_records(config, model, arch);
    return_freed_memory();
    if (std::string described = describe_images(trials); !described.empty()) {
      devices.images = largest_of_bins(config, loads_of_bins(config, trials, of_model));
      return described;
    }
    const bool are_too_long = std::any_of(
        trials.begin(), trials.end(),
        [](const data::DatasetTrial& trial) { return trial.stats.num_media_left_out > 0; });
    if (are_too_long)
      reason = "those among the first examples are longer than model.max_seq_len, and left out";
  } catch (const Error& error) {  // which the run will report
    reason = fmt::format("the data were not read: {}", error.message());
  }
  devices.images = full_of_images(config, arch, of_model);
  return fmt::format("images: assumed to fill each sequence ({})", reason);
}

std::string to_text(const plan::ImagesOfBin& images) {
  return fmt::format("{},{},{}", images.tiles, images.patches, images.longest_tile);
}

void plan_images_of_launcher(const std::string& text, const config::RunConfig& config,
                             const spec::ArchSpec& arch, plan::RunDevices& devices) {
  plan::ImagesOfBin& images = devices.images;
  const char* const end = text.data() + text.size();
  const auto tiles = std::from_chars(text.data(), end, images.tiles);
  const auto patches = std::from_chars(std::min(tiles.ptr + 1, end), end, images.patches);
  const auto longest = std::from_chars(std::min(patches.ptr + 1, end), end, images.longest_tile);
  if (tiles.ec != std::errc() || patches.ec != std::errc() || longest.ec != std::errc() ||
      longest.ptr != end)
    throw ConfigError(fmt::format("`{}` is not what a launcher gives its workers", text),
                      "--images-of-bin", "leave it out");
  devices.tower = plan::TowerUse::of(config.tuning, arch, /*has_images=*/true);
}

}  // namespace sftrun::app
