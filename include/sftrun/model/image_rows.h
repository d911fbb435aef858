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

/// The form of `layers::TowerInput::patches`.
images::PatchForm patch_form(const spec::VisionSpec& vision);

/// The input of the tower for images in order, on the host. The patches, `plan->num_values(patch_form)` values of each image, are without
/// content.
/// @throws as data::tower_grid
layers::TowerInput tower_input(const images::ImageProcessor& processor,
                               const spec::VisionSpec& vision, std::span<const PlannedRows> images);

}  // namespace sftrun::model
