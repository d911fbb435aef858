#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "sftrun/data/batch_plan.h"
#include "sftrun/data/example_store.h"
#include "sftrun/images/process.h"

/// How much images give the vision tower to do, by their sizes alone.
namespace sftrun::data {

/// Patches of the tower that images become. A tile is an image, a part of one, or a frame.
struct ImageLoad {
  int64_t tiles = 0;
  int64_t patches = 0;       ///< of all tiles
  int64_t longest_tile = 0;  ///< patches of the largest
  void add(const ImageLoad& other);
};

/// Counts patches; images of the same size are planned once.   @param processor outlives it
class ImageCounter {
 public:
  /// @param patch_side in pixels, of the tower (spec::PatchEmbedding::side)
  ImageCounter(const images::ImageProcessor& processor, int64_t patch_side)
      : processor_(processor), patch_side_(patch_side) {}

  /// Of an image.   @throws DataError as images::plan_image
  const ImageLoad& of(int64_t width, int64_t height);
  ImageLoad of(const ExampleStore& examples, const Bin& bin);

 private:
  const images::ImageProcessor& processor_;
  int64_t patch_side_;
  std::map<std::pair<int64_t, int64_t>, ImageLoad> known_;  // by width and height
};

/// The micro-batch with most patches, of micro-batches of `num_bins` consecutive bins; `longest_tile` is that of all.
ImageLoad largest_image_load(const ExampleStore& examples, std::span<const Bin> bins,
                             int64_t num_bins, ImageCounter& counter);

}  // namespace sftrun::data
