#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/images/process.h"
#include "sftrun/layers/tower.h"

/// From what image processors give to what towers take.
namespace sftrun::model {

/// One image of a micro-batch.
struct PlannedRows {
  const images::ImagePlan* plan = nullptr;
  uint32_t document = 0;  ///< key of its document (`layers::TowerTile`)
};

/// The tiles of an image, in patches of the tower.   @throws DataError if the processor's patches are not the tower's
std::vector<layers::TowerTile> tiles_of(const images::ImageProcessor& processor,
                                        const spec::VisionSpec& vision,
                                        const images::ImagePlan& plan);

/// The form of `layers::TowerInput::patches`.
images::PatchForm patch_form(const spec::VisionSpec& vision);

/// The input of the tower for images in order, on the host. The patches, `plan->num_values()` values of each image in `patch_form`, are
/// without content.
/// @throws as tiles_of
layers::TowerInput tower_input(const images::ImageProcessor& processor,
                               const spec::VisionSpec& vision, std::span<const PlannedRows> images);

}  // namespace sftrun::model
