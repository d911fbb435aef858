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

/// Where features stand in the text. In context parallelism a rank computes all of them, and has the
/// rows of some.
struct FeaturePlaces {
  at::Tensor rows;     ///< [n] int64, of the tokens that are here, in the features' order
  at::Tensor numbers;  ///< [n] int64: which of the N features these are; undefined: all, n = N
  /// @param all [N, …]   @return [n, …]
  at::Tensor of_rows(const at::Tensor& all) const;
  /// The gradient of all features [N, …] from that of the rows [n, …].
  at::Tensor of_all(const at::Tensor& gradient, int64_t num_features) const;
};

/// The embeddings of `places` are replaced by the tower's features, of which each merged square of
/// patches has one.
struct PackedImages {
  layers::TowerInput input;
  layers::TowerLayout layout;
  FeaturePlaces places;
};

/// The embeddings of `places` are replaced by what a projector makes of features.
struct PackedFeatures {
  int64_t projector = 0;  ///< number in `ArchSpec::projectors`
  at::Tensor values;      ///< [N, input_width] in the compute dtype
  FeaturePlaces places;
};

/// hidden[rows] = features.   @pre there are as many (ImageSource::load has checked images, data::read_features features)
void put_rows(at::Tensor& hidden, const at::Tensor& rows, const at::Tensor& features);

}  // namespace sftrun::model
