#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/data/example.h"
#include "sftrun/data/media_faults.h"
#include "sftrun/layers/tower.h"

/// Images and features of a micro-batch on its device.
namespace sftrun::model {

/// Gives the images of micro-batches.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  /// What the tower takes, on the host.   @param batch with images
  /// @param faults takes note of images that cannot be read, of which blank ones take the place; null: they are errors
  /// @throws data::MediaError
  virtual layers::TowerInput load(const data::Batch& batch, data::MediaFaults* faults) = 0;
};

/// The embeddings of `rows` are replaced by the tower's features.
struct PackedImages {
  layers::TowerInput input;
  layers::TowerLayout layout;
  at::Tensor rows;  ///< [N] int64, in the images' order. Each merged square of patches has one.
};

/// The embeddings of `rows` are replaced by what a projector makes of features.
struct PackedFeatures {
  int64_t projector = 0;  ///< number in `ArchSpec::projectors`
  at::Tensor values;      ///< [N, input_width] in the compute dtype
  at::Tensor rows;        ///< [N] int64
};

/// hidden[rows] = features.   @pre there are as many (ImageSource::load has checked images, data::read_features features)
void put_rows(at::Tensor& hidden, const at::Tensor& rows, const at::Tensor& features);

}  // namespace sftrun::model
