#include "sftrun/model/image_rows.h"

#include <ATen/ATen.h>

#include <utility>

#include "sftrun/data/tower_grid.h"

namespace sftrun::model {
namespace {

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
  int64_t num_patches = 0, merged_rows = 0;
  for (const PlannedRows& image : images) {
    if (image.document != document) document = image.document, next_patch = 0;
    const data::TowerGrid grid = data::tower_grid(processor, vision, *image.plan);
    for (int64_t tile = 0; tile < grid.tiles; ++tile) {
      input.tiles.push_back({.rows = grid.rows,
                             .columns = grid.columns,
                             .document = document,
                             .first_patch = next_patch});
      next_patch += static_cast<uint32_t>(grid.rows * grid.columns);
    }
    num_patches += grid.patches();
    if (vision.newline.empty()) continue;
    add_unpadded_rows(*image.plan, merged_rows, feature_rows);
    merged_rows += image.plan->rows * image.plan->token_rows * image.plan->token_columns;
  }
  input.patches = at::empty({num_patches, vision.patches.values()});
  if (!vision.newline.empty()) input.feature_rows = at::tensor(feature_rows, at::kLong);
  return input;
}

}  // namespace sftrun::model
