#pragma once

#include <cstdint>

#include "sftrun/images/process.h"
#include "sftrun/spec/vision_spec.h"

namespace sftrun::data {

/// An image, or a group of a video's frames, as the patches that a vision tower reads: all tiles have the same.
struct TowerGrid {
  int64_t tiles = 0, rows = 0, columns = 0;
  int64_t patches() const { return tiles * rows * columns; }
};

/// What the tower makes of an image, by the plan of the model's image processor. Both are read from files, which may be of different models.
/// @throws DataError naming the processor's file if its patches are not the tower's, if the tower makes another number of features than there are
/// tokens for them, or if the image has more patches than position embeddings
TowerGrid tower_grid(const images::ImageProcessor& processor, const spec::VisionSpec& vision,
                     const images::ImagePlan& plan);

}  // namespace sftrun::data
