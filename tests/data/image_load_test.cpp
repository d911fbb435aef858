#include "sftrun/data/image_load.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

images::ImageProcessor processor_of(images::ProcessorKind kind) {
  images::ImageProcessor processor{.kind = kind};
  processor.row().defaults(processor);
  return processor;
}

Example with_images(const std::vector<std::pair<int64_t, int64_t>>& sizes) {
  Example example{.tokens = {1, 2}, .labels = {2, kIgnoreIndex}, .label_tokens = 1};
  for (const auto& [width, height] : sizes)
    example.media.push_back({.media = {.path = "a.png"}, .width = width, .height = height});
  return example;
}

/// Qwen's patches have 14 pixels a side, and the sides of images are multiples of 28.
TEST(ImageLoad, CountsPatchesOfSizesNearTheImages) {
  const images::ImageProcessor processor = processor_of(images::ProcessorKind::kQwen2Vl);
  ImageCounter counter(processor, 14);
  const ImageLoad& square = counter.of(112, 112);
  EXPECT_EQ(square.patches, 64);
  EXPECT_EQ(square.tiles, 1);
  EXPECT_EQ(square.longest_tile, 64);
  EXPECT_EQ(counter.of(225, 112).patches, 16 * 8) << "225 pixels become 224";
}

/// SigLIP's tiles have one size.
TEST(ImageLoad, CountsTiles) {
  const images::ImageProcessor processor = processor_of(images::ProcessorKind::kGemma3);
  ImageCounter counter(processor, 14);
  for (const int64_t side : {10, 1000}) {
    EXPECT_EQ(counter.of(side, 300).patches, 256);
    EXPECT_EQ(counter.of(side, 300).tiles, 1);
  }
}

TEST(ImageLoad, FindsTheMicroBatchWithMostPatches) {
  const images::ImageProcessor processor = processor_of(images::ProcessorKind::kQwen2Vl);
  ImageCounter counter(processor, 14);
  const ExampleStore examples =
      ExampleStore::in_memory({with_images({{112, 112}}), with_images({}),
                               with_images({{112, 112}, {224, 112}}), with_images({{448, 112}})});
  const std::vector<Bin> bins = {{0, 1}, {2}, {3}, {1}};
  const auto largest = [&](int64_t num_bins) {
    return largest_image_load(examples, bins, num_bins, counter);
  };
  EXPECT_EQ(largest(1).patches, 256);
  EXPECT_EQ(largest(2).patches, 64 + 64 + 128) << "64, 192; 256, 0";
  EXPECT_EQ(largest(2).tiles, 3);
  EXPECT_EQ(largest(2).longest_tile, 256) << "of another micro-batch";
  EXPECT_EQ(largest(4).patches, 64 + 192 + 256);
  // Examples that were chosen keep their images.
  EXPECT_EQ(counter.of(examples.select({3, 1}), {0, 1}).patches, 256);
}

}  // namespace
}  // namespace sftrun::data
