#include "sftrun/model/image_rows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

[[noreturn]] void refuse_patches(const images::ImageProcessor& processor, const std::string& what) {
  throw DataError(
      fmt::format("the image processor's {} are not those of the model's vision tower", what),
      processor.where, "use the image processor's file that belongs to the model");
}

at::Tensor as_tensor(std::span<const float> values, std::vector<int64_t> shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

/// [P, values] of one image, in the order of `layers::TowerInput`.
/// @param tile one of the image's, which have the same size
at::Tensor patches_of(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                      const ProcessedRows& image, const layers::TowerTile& tile) {
  const images::ImagePlan& plan = *image.plan;
  const at::Tensor rows = as_tensor(image.pixel_values, {plan.rows, plan.values_per_row});
  switch (processor.row().layout) {
    case images::PixelLayout::kMergeBlocks:
      return rows;
    case images::PixelLayout::kChannelLast:
      return rows.index_select(0, at::tensor(layers::merged_order(tile, vision.merger.side)));
    case images::PixelLayout::kPlanes:
      return layers::patches_of_planes(rows.view({plan.rows, 3, plan.tile_height, plan.tile_width}),
                                       vision.patches, vision.merger.side);
  }
  return {};
}

}  // namespace

std::vector<layers::TowerTile> tiles_of(const images::ImageProcessor& processor,
                                        const spec::VisionSpec& vision,
                                        const images::ImagePlan& plan) {
  const int64_t side = vision.patches.side, square = vision.merger.side;
  if (processor.row().layout == images::PixelLayout::kPlanes) {
    if (plan.tile_height % (side * square) != 0 || plan.tile_width % (side * square) != 0)
      refuse_patches(processor, "tiles");
    const layers::TowerTile tile{.rows = plan.tile_height / side,
                                 .columns = plan.tile_width / side};
    return std::vector<layers::TowerTile>(static_cast<size_t>(plan.rows), tile);
  }
  if (plan.values_per_row != vision.patches.values()) refuse_patches(processor, "patches");
  const bool has_grid = plan.grid_thw[1] > 0;
  const layers::TowerTile tile{.rows = has_grid ? plan.grid_thw[1] : plan.tile_height / side,
                               .columns = has_grid ? plan.grid_thw[2] : plan.tile_width / side};
  const int64_t frames = has_grid ? plan.grid_thw[0] : 1;
  if (frames * tile.patches() != plan.rows || tile.rows % square != 0 || tile.columns % square != 0)
    refuse_patches(processor, "patches");
  return std::vector<layers::TowerTile>(static_cast<size_t>(frames), tile);
}

layers::TowerInput tower_input(const images::ImageProcessor& processor,
                               const spec::VisionSpec& vision,
                               std::span<const ProcessedRows> images) {
  layers::TowerInput input;
  std::vector<at::Tensor> patches;
  uint32_t document = 0, next_patch = 0;
  for (const ProcessedRows& image : images) {
    if (image.document != document) document = image.document, next_patch = 0;
    const std::vector<layers::TowerTile> tiles = tiles_of(processor, vision, *image.plan);
    patches.push_back(patches_of(processor, vision, image, tiles.front()));
    for (layers::TowerTile tile : tiles) {
      tile.document = document, tile.first_patch = next_patch;
      next_patch += static_cast<uint32_t>(tile.patches());
      input.tiles.push_back(tile);
    }
  }
  input.patches = patches.empty() ? at::empty({0, vision.patches.values()}) : at::cat(patches);
  return input;
}

}  // namespace sftrun::model
