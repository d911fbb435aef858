#include "sftrun/model/image_rows.h"

#include <ATen/ATen.h>

#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

[[noreturn]] void refuse_patches(const images::ImageProcessor& processor, const std::string& what) {
  throw DataError(
      fmt::format("the image processor's {} are not those of the model's vision tower", what),
      processor.where, "use the image processor's file that belongs to the model");
}

/// LLaVA-NeXT (`pack_image_features` of transformers): the whole image, then the rows of the other tiles put together, without what was
/// padded, each with an end.
/// @param first the image's first merged row   @param rows gets `TowerInput::feature_rows`
void add_unpadded_rows(const images::ImagePlan& plan, int64_t first, std::vector<int64_t>& rows) {
  const int64_t high = plan.token_rows, wide = plan.token_columns, of_tile = high * wide;
  for (int64_t i = 0; i < of_tile; ++i) rows.push_back(first + i);
  const int64_t top = (plan.tile_rows * high - plan.unpadded_rows) / 2,
                left = (plan.tile_columns * wide - plan.unpadded_columns) / 2;
  for (int64_t y = top; y < top + plan.unpadded_rows; ++y) {
    for (int64_t x = left; x < left + plan.unpadded_columns; ++x) {
      const int64_t tile = 1 + y / high * plan.tile_columns + x / wide;
      rows.push_back(first + tile * of_tile + y % high * wide + x % wide);
    }
    rows.push_back(-1);
  }
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

images::PatchForm patch_form(const spec::VisionSpec& vision) {
  return {.side = vision.patches.side,
          .merge = vision.merger.side,
          .is_channels_last = vision.patches.order == spec::PatchOrder::kChannelsLast};
}

layers::TowerInput tower_input(const images::ImageProcessor& processor,
                               const spec::VisionSpec& vision,
                               std::span<const PlannedRows> images) {
  layers::TowerInput input;
  std::vector<int64_t> feature_rows;
  uint32_t document = 0, next_patch = 0;
  int64_t num_values = 0, merged_rows = 0;
  if (!vision.newline.empty() && processor.image_grid_pinpoints != vision.canvases)
    refuse_patches(processor, "`image_grid_pinpoints`");
  for (const PlannedRows& image : images) {
    if (image.document != document) document = image.document, next_patch = 0;
    for (layers::TowerTile tile : tiles_of(processor, vision, *image.plan)) {
      tile.document = document, tile.first_patch = next_patch;
      next_patch += static_cast<uint32_t>(tile.patches());
      input.tiles.push_back(tile);
    }
    num_values += image.plan->num_values();
    if (vision.newline.empty()) continue;
    add_unpadded_rows(*image.plan, merged_rows, feature_rows);
    merged_rows += image.plan->rows * image.plan->token_rows * image.plan->token_columns;
  }
  input.patches = at::empty({num_values / vision.patches.values(), vision.patches.values()});
  if (!vision.newline.empty()) input.feature_rows = at::tensor(feature_rows, at::kLong);
  return input;
}

}  // namespace sftrun::model
