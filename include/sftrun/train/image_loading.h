#pragma once

#include "sftrun/data/example.h"
#include "sftrun/data/image_input.h"
#include "sftrun/model/packed_images.h"
#include "sftrun/spec/vision_spec.h"

/// From a batch's references to images to what a tower takes.
namespace sftrun::train {

/// Reads, decodes and processes the images of a micro-batch, one in each thread at a time. Pixels of a decoded file are in memory only
/// while that file is processed.
/// @throws DataError naming the image if its file cannot be read or decoded, or has another size than when the data were tokenised
model::ImageRows load_images(const data::Batch& batch, const data::ImageInput& input,
                             const spec::VisionSpec& vision, int num_threads);

}  // namespace sftrun::train
