#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/layers/tower.h"

/// Images of a micro-batch on its device.
namespace sftrun::model {

/// What the loader gives of the images of a micro-batch, on the host.
struct ImageRows {
  layers::TowerInput input;
  /// [N] rows of the micro-batch that the images' features stand in, in the images' order. Each merged square of patches has one.
  std::vector<int64_t> rows;
};

/// The embeddings of `rows` are replaced by the tower's features.
struct PackedImages {
  layers::TowerInput input;
  layers::TowerLayout layout;
  at::Tensor rows;  ///< [N] int64
};

}  // namespace sftrun::model
