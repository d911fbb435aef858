#pragma once

#include "sftrun/data/deal.h"
#include "sftrun/images/process.h"
#include "sftrun/plan/sequence_cost.h"

namespace sftrun::train {

/// What packed sequences with images cost, by the lengths of their documents and the sizes of their images.
/// @param processor of the images; must outlive what is returned   @param patch_side in pixels, of the tower
data::BinCost bin_cost(const plan::SequenceCost& cost, const images::ImageProcessor& processor,
                       int64_t patch_side);

}  // namespace sftrun::train
