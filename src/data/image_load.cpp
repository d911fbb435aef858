#include "sftrun/data/image_load.h"

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

/// As model::tiles_of makes tiles of the same plan.
ImageLoad load_of_plan(const images::ImageProcessor& processor, const images::ImagePlan& plan,
                       int64_t patch_side) {
  const bool has_planes = processor.row().layout == images::PixelLayout::kPlanes;
  if (!has_planes && plan.grid_thw[1] > 0) {
    const auto [frames, rows, columns] = plan.grid_thw;
    return {.tiles = frames, .patches = frames * rows * columns, .longest_tile = rows * columns};
  }
  const int64_t of_tile = plan.tile_height / patch_side * (plan.tile_width / patch_side),
                tiles = has_planes ? plan.rows : 1;
  return {.tiles = tiles, .patches = tiles * of_tile, .longest_tile = of_tile};
}

/// Of frames of a video, which are planned where the whole video is known.
ImageLoad load_of_frames(const images::ImageProcessor& processor, const StoredMedia& frames,
                         int64_t patch_side) {
  int64_t of_tile = int64_t{frames.grid_thw[1]} * frames.grid_thw[2];
  if (of_tile > 0) return {.tiles = 1, .patches = of_tile, .longest_tile = of_tile};
  const int64_t side = processor.max_image_size / patch_side;
  of_tile = side * side;
  return {.tiles = frames.rows, .patches = frames.rows * of_tile, .longest_tile = of_tile};
}

}  // namespace

void ImageLoad::add(const ImageLoad& other) {
  tiles += other.tiles;
  patches += other.patches;
  longest_tile = std::max(longest_tile, other.longest_tile);
}

const ImageLoad& ImageCounter::of(int64_t width, int64_t height) {
  const auto size = std::pair(width, height);
  const auto found = known_.find(size);
  if (found != known_.end()) return found->second;
  const images::ImagePlan plan = images::plan_image(processor_, width, height);
  return known_.emplace(size, load_of_plan(processor_, plan, patch_side_)).first->second;
}

ImageLoad ImageCounter::of(const ExampleStore& examples, const Bin& bin) {
  ImageLoad load;
  for (const int64_t example : bin)
    for (const StoredMedia& image : examples.stored_media(example)) {
      if (!image.is_image()) continue;
      load.add(image.video > 0 ? load_of_frames(processor_, image, patch_side_)
                               : of(image.width, image.height));
    }
  return load;
}

ImageLoad largest_image_load(const ExampleStore& examples, std::span<const Bin> bins,
                             int64_t num_bins, ImageCounter& counter) {
  SFTRUN_CHECK(num_bins > 0);
  ImageLoad largest, micro_batch;
  int64_t longest_tile = 0, count = 0;
  for (const Bin& bin : bins) {
    micro_batch.add(counter.of(examples, bin));
    longest_tile = std::max(longest_tile, micro_batch.longest_tile);
    if (micro_batch.patches > largest.patches) largest = micro_batch;
    if (++count % num_bins == 0) micro_batch = {};
  }
  largest.longest_tile = longest_tile;
  return largest;
}

}  // namespace sftrun::data
