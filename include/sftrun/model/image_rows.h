#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/images/process.h"
#include "sftrun/layers/tower.h"

/// From what image processors give to what towers take.
namespace sftrun::model {

/// One image of a micro-batch, as `images::process` makes it.
struct ProcessedRows {
  const images::ImagePlan* plan = nullptr;
  std::span<const float> pixel_values;
  uint32_t document = 0;  ///< key of its document (`layers::TowerTile`)
};

/// The tiles of an image, in patches of the tower.   @throws DataError if the processor's patches are not the tower's
std::vector<layers::TowerTile> tiles_of(const images::ImageProcessor& processor,
                                        const spec::VisionSpec& vision,
                                        const images::ImagePlan& plan);

/// The input of the tower for images in order, on the host.
layers::TowerInput tower_input(const images::ImageProcessor& processor,
                               const spec::VisionSpec& vision,
                               std::span<const ProcessedRows> images);

}  // namespace sftrun::model
