#pragma once

#include <memory>

#include "sftrun/core/activity.h"
#include "sftrun/data/example.h"
#include "sftrun/data/image_input.h"
#include "sftrun/model/packed_images.h"
#include "sftrun/spec/vision_spec.h"

/// From a batch's references to images to what a tower takes.
namespace sftrun::train {

/// Reads, decodes and processes the images of micro-batches, one in each thread at a time. Pixels of a decoded file are in memory only
/// while that file is processed. On a GPU this runs beside the passes that were launched before.
class ImageLoader final : public model::ImageSource {
 public:
  /// @param vision of the model that takes them   @param activity is told of the loading; may be null
  ImageLoader(std::shared_ptr<const data::ImageInput> input, spec::VisionSpec vision,
              int num_threads, Activity* activity = nullptr);
  ~ImageLoader() override;
  /// @throws data::MediaError naming the image if its file cannot be read or decoded, or has another size than when the data were
  /// tokenised; with `faults` its values are 0
  layers::TowerInput load(const data::Batch& batch, data::MediaFaults* faults = nullptr) override;

 private:
  class Memory;

  std::shared_ptr<const data::ImageInput> input_;
  spec::VisionSpec vision_;
  int num_threads_;
  Activity* activity_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace sftrun::train
