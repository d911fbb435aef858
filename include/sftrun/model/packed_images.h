#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/data/example.h"
#include "sftrun/layers/tower.h"

/// Images of a micro-batch on its device.
namespace sftrun::model {

/// Gives the images of micro-batches.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  /// What the tower takes, on the host.   @param batch with images
  /// @throws DataError naming the image if it cannot be read
  virtual layers::TowerInput load(const data::Batch& batch) = 0;
};

/// The embeddings of `rows` are replaced by the tower's features.
struct PackedImages {
  layers::TowerInput input;
  layers::TowerLayout layout;
  at::Tensor rows;  ///< [N] int64, in the images' order. Each merged square of patches has one.
};

}  // namespace sftrun::model
