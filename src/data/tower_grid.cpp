#include "sftrun/data/tower_grid.h"

#include <algorithm>
#include <string>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

constexpr const char* kOtherFiles =
    "use the image processor's files and the config.json of the same model";

[[noreturn]] void refuse_patches(const images::ImageProcessor& processor, const std::string& what) {
  throw DataError(
      fmt::format("the image processor's {} are not those of the model's vision tower", what),
      processor.where, kOtherFiles);
}

TowerGrid grid_of(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                  const images::ImagePlan& plan) {
  const int64_t side = vision.patches.side, square = vision.merger.side;
  if (processor.row().layout == images::PixelLayout::kPlanes) {
    // A tower's convolution leaves out what is less than a patch.
    const TowerGrid grid{
        .tiles = plan.rows, .rows = plan.tile_height / side, .columns = plan.tile_width / side};
    if (grid.rows == 0 || grid.columns == 0 || grid.rows % square != 0 ||
        grid.columns % square != 0)
      refuse_patches(processor, "tiles");
    return grid;
  }
  if (plan.values_per_row != vision.patches.values()) refuse_patches(processor, "patches");
  const bool has_grid = plan.grid_thw[1] > 0;
  const TowerGrid grid{.tiles = has_grid ? plan.grid_thw[0] : 1,
                       .rows = has_grid ? plan.grid_thw[1] : plan.tile_height / side,
                       .columns = has_grid ? plan.grid_thw[2] : plan.tile_width / side};
  if (grid.patches() != plan.rows || grid.rows % square != 0 || grid.columns % square != 0)
    refuse_patches(processor, "patches");
  return grid;
}

void require_positions(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                       const TowerGrid& grid) {
  const int64_t class_tokens = vision.class_token.empty() ? 0 : 1;
  const bool fits = vision.positions == spec::TowerPositions::kTable
                        ? grid.rows == grid.columns &&
                              class_tokens + grid.rows * grid.columns == vision.position_rows
                    : vision.positions == spec::TowerPositions::kAxes
                        ? std::max(grid.rows, grid.columns) <= vision.position_rows
                        : true;
  if (fits) return;
  throw DataError(fmt::format("{} x {} patches do not fit the position embeddings of the vision "
                              "tower, which has {} of them",
                              grid.rows, grid.columns, vision.position_rows),
                  processor.where, kOtherFiles);
}

/// LLaVA-NeXT: the whole image, then rows of the other tiles' features, each with an end.
int64_t num_unpadded(const images::ImageProcessor& processor, const images::ImagePlan& plan,
                     const TowerGrid& grid, const spec::VisionSpec& vision) {
  if (processor.image_grid_pinpoints != vision.canvases)
    refuse_patches(processor, "`image_grid_pinpoints`");
  if (plan.token_rows * vision.merger.side != grid.rows ||
      plan.token_columns * vision.merger.side != grid.columns)
    refuse_patches(processor, "patches");
  return plan.token_rows * plan.token_columns + plan.unpadded_rows * (plan.unpadded_columns + 1);
}

int64_t num_features(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                     const images::ImagePlan& plan, const TowerGrid& grid) {
  if (!vision.newline.empty()) return num_unpadded(processor, plan, grid, vision);
  const bool has_class_tokens = !vision.class_token.empty() && !vision.drops_class_token;
  return grid.patches() / (vision.merger.side * vision.merger.side) +
         (has_class_tokens ? grid.tiles : 0);
}

}  // namespace

TowerGrid tower_grid(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                     const images::ImagePlan& plan) {
  const TowerGrid grid = grid_of(processor, vision, plan);
  require_positions(processor, vision, grid);
  const int64_t features = num_features(processor, vision, plan, grid);
  if (features == plan.num_tokens) return grid;
  throw DataError(
      fmt::format("an image has {} tokens by the files of the image processor, and the model's "
                  "vision tower makes {} features of it",
                  plan.num_tokens, features),
      processor.where, kOtherFiles);
}

}  // namespace sftrun::data
