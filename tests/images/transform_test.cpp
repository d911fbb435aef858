#include "sftrun/images/transform.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "images/image_files.h"
#include "resize_passes.h"
#include "sftrun/core/xxh3.h"

namespace sftrun::images {
namespace {

using fixtures::image_cases;
using fixtures::random_image;

std::string hash_of_image(const Image& image) {
  return xxh3_128(std::as_bytes(std::span(image.pixels)));
}

TEST(Resize, GivesThePixelsOfPillow) {
  ASSERT_GT(image_cases("resizes").size(), 80U);
  for (const auto& expected : image_cases("resizes")) {
    SCOPED_TRACE(expected.dump());
    const Image image = fixtures::decoded(expected.at("file"));
    const auto filter = filter_numbered(expected.at("filter")).value();
    const Image resized =
        resize(image, expected.at("size").at(0), expected.at("size").at(1), filter);
    EXPECT_EQ(hash_of_image(resized), expected.at("xxh3").get<std::string>()) << name_of(filter);
  }
}

TEST(Resize, WithoutAChangeIsACopy) {
  const Image image = random_image(9, 7, 1);
  EXPECT_EQ(resize(image, 9, 7, Filter::kLanczos), image);
}

Image resized_rows(const RowPass& pass, const Image& image, int64_t after) {
  Image result(after, image.height);
  pass.run({image.pixels.data(), image.width * 3}, image.width, image.height,
           {result.pixels.data(), after * 3});
  return result;
}

/// Sizes before and after; some lines of an image are more than one vector, and some are less.
constexpr std::array<std::array<int64_t, 3>, 9> kSizes{{{1, 1, 1},
                                                        {5, 3, 4},
                                                        {33, 9, 7},
                                                        {7, 5, 40},
                                                        {200, 6, 3},
                                                        {64, 4, 63},
                                                        {64, 41, 13},
                                                        {48, 6, 83},
                                                        {101, 9, 160}}};
constexpr Filter kFilters[] = {Filter::kBox, Filter::kBilinear, Filter::kBicubic, Filter::kLanczos};

/// Compares with the plain pass where `make` makes one.
/// @return how many it made
int expect_plain_rows(decltype(&row_pass) make) {
  int made = 0;
  for (const auto& [width, height, after] : kSizes)
    for (const Filter filter : kFilters) {
      SCOPED_TRACE(fmt::format("{} x {} to {}, {}", width, height, after, name_of(filter)));
      const Image image = random_image(width, height, 3);
      const ResizeWeights weights = weights_of(width, after, filter);
      const auto pass = make(weights);
      if (!pass) continue;
      ++made;
      EXPECT_EQ(resized_rows(*pass, image, after),
                resized_rows(*row_pass_plain(weights), image, after));
    }
  return made;
}

void expect_plain_columns(decltype(&resize_columns_avx2) columns) {
  for (const auto& [width, height, after] : kSizes)
    for (const Filter filter : kFilters) {
      SCOPED_TRACE(fmt::format("{} x {} to {}, {}", width, height, after, name_of(filter)));
      const Image image = random_image(width, height, 3);
      const ConstRows source{image.pixels.data(), width * 3};
      const ResizeWeights weights = weights_of(height, after, filter);
      Image plain(width, after), fast(width, after);
      const Rows target{fast.pixels.data(), width * 3};
      resize_columns_plain(source, 0, 0, width * 3, weights, {plain.pixels.data(), width * 3});
      const int64_t done = columns(source, 0, width * 3, weights, target);
      EXPECT_EQ(done, width * 3 / 32 * 32);
      resize_columns_plain(source, 0, done, width * 3, weights, target);
      EXPECT_EQ(plain, fast);
    }
}

/// Weights of one pixel, which every processor's passes take.
const ResizeWeights kOne{.windows = {{0, 1}}, .stride = 4, .values = {1 << kWeightBits, 0, 0, 0}};
constexpr int kNumCases = std::size(kSizes) * std::size(kFilters);

TEST(Resize, PassesOfAvx2EqualThePlainOnes) {
  if (!row_pass_avx2(kOne)) GTEST_SKIP() << "the processor does not have the instructions";
  EXPECT_EQ(expect_plain_rows(row_pass_avx2), kNumCases);
  expect_plain_columns(resize_columns_avx2);
}

TEST(Resize, PassesOfVnniEqualThePlainOnes) {
  if (!row_pass_vnni(kOne)) GTEST_SKIP() << "the processor does not have the instructions";
  EXPECT_EQ(expect_plain_rows(row_pass_vnni), kNumCases);
  expect_plain_columns(resize_columns_vnni);
}

TEST(Resize, PassesOfVbmiEqualThePlainOnes) {
  if (!row_pass_vbmi(kOne)) GTEST_SKIP() << "the processor does not have the instructions";
  // Images that become larger, or little smaller: four bytes of a channel are within 64 bytes for 16 pixels.
  EXPECT_EQ(expect_plain_rows(row_pass_vbmi), 24);
}

TEST(Resize, PassesOfDigitsLeaveWeightsThatDigitsDoNotHold) {
  if (!row_pass_vnni(kOne)) GTEST_SKIP() << "the processor does not have the instructions";
  const Image image = random_image(16, 4, 5);
  Image result(16, 4);
  const Rows target{result.pixels.data(), 48};
  const ConstRows source{image.pixels.data(), 48};
  for (const auto& [weight, holds] : {std::pair(1, true), {3, false}, {-3, false}}) {
    const ResizeWeights weights{
        .windows = {{0, 1}}, .stride = 4, .values = {weight * (1 << kWeightBits), 0, 0, 0}};
    EXPECT_EQ(row_pass_vnni(weights) != nullptr, holds) << weight;
    EXPECT_EQ(row_pass_vbmi(weights) != nullptr, holds && row_pass_vbmi(kOne)) << weight;
    EXPECT_EQ(resize_columns_vnni(source, 0, 48, weights, target), holds ? 32 : 0) << weight;
  }
}

TEST(Resize, FiltersHavePillowsNumbers) {
  EXPECT_EQ(filter_numbered(0), Filter::kNearest);
  EXPECT_EQ(filter_numbered(1), Filter::kLanczos);
  EXPECT_EQ(filter_numbered(2), Filter::kBilinear);
  EXPECT_EQ(filter_numbered(3), Filter::kBicubic);
  EXPECT_EQ(filter_numbered(4), Filter::kBox);
  EXPECT_EQ(filter_numbered(5), Filter::kHamming);
  EXPECT_EQ(filter_numbered(6), std::nullopt);
  EXPECT_EQ(filter_numbered(-1), std::nullopt);
}

/// An image whose pixel (x, y) is (10 x + y + 1) in red, and 7 in green and blue.
Image numbered(int64_t width, int64_t height) {
  Image image(width, height);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      image.row(y)[x * 3] = static_cast<uint8_t>(10 * x + y + 1);
      image.row(y)[x * 3 + 1] = image.row(y)[x * 3 + 2] = 7;
    }
  return image;
}

std::vector<int> reds(const Image& image) {
  std::vector<int> values;
  for (size_t i = 0; i < image.pixels.size(); i += 3) values.push_back(image.pixels[i]);
  return values;
}

TEST(Crop, IsBlackOutside) {
  const Image image = numbered(3, 2);  // 1 11 21 / 2 12 22
  EXPECT_EQ(reds(crop(image, 1, 0, 2, 2)), (std::vector{11, 21, 12, 22}));
  EXPECT_EQ(reds(crop(image, -1, 1, 3, 2)), (std::vector{0, 2, 12, 0, 0, 0}));
  EXPECT_EQ(reds(crop(image, 2, -1, 2, 2)), (std::vector{0, 0, 21, 0}));
  EXPECT_EQ(reds(crop(image, 5, 5, 1, 1)), (std::vector{0}));
  EXPECT_EQ(reds(crop(image, -4, 0, 2, 1)), (std::vector{0, 0}));
}

TEST(Pad, AddsAColour) {
  const Image padded = pad(numbered(2, 1), 1, 1, 0, 2, {5, 6, 8});
  EXPECT_EQ(padded.width, 3);
  EXPECT_EQ(padded.height, 4);
  EXPECT_EQ(reds(padded), (std::vector{5, 5, 5, 5, 1, 11, 5, 5, 5, 5, 5, 5}));
  EXPECT_EQ(padded.pixels[1], 6);
  EXPECT_EQ(padded.pixels[2], 8);
}

TEST(CentreCrop, IsThatOfTransformers) {
  for (const auto& expected : image_cases("crops")) {
    SCOPED_TRACE(expected.dump());
    const Image image = fixtures::decoded(expected.at("file"));
    const Image middle = centre_crop(image, expected.at("size").at(0), expected.at("size").at(1));
    EXPECT_EQ(hash_of_image(middle), expected.at("xxh3").get<std::string>());
  }
}

TEST(CentreCrop, PutsTheOddPixelWhereItIsTold) {
  const Image image = numbered(2, 1);
  EXPECT_EQ(reds(centre_crop(image, 3, 1, OddPadding::kBefore)), (std::vector{0, 1, 11}));
  EXPECT_EQ(reds(centre_crop(image, 3, 1, OddPadding::kAfter)), (std::vector{1, 11, 0}));
  EXPECT_EQ(reds(centre_crop(numbered(4, 1), 1, 1, OddPadding::kAfter)), (std::vector{11}));
}

TEST(Oriented, TurnsAsExifSays) {
  const Image image = numbered(3, 2);  // 1 11 21 / 2 12 22
  const std::vector<int> expected[] = {{1, 11, 21, 2, 12, 22}, {21, 11, 1, 22, 12, 2},
                                       {22, 12, 2, 21, 11, 1}, {2, 12, 22, 1, 11, 21},
                                       {1, 2, 11, 12, 21, 22}, {2, 1, 12, 11, 22, 21},
                                       {22, 21, 12, 11, 2, 1}, {21, 22, 11, 12, 1, 2}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const Image turned = oriented(image, orientation);
    EXPECT_EQ(turned.width, orientation < 5 ? 3 : 2);
    EXPECT_EQ(reds(turned), expected[orientation - 1]);
  }
}

TEST(Oriented, TurnsLargeImagesBack) {
  const Image image = random_image(70, 45, 5);
  const int opposite[] = {1, 2, 3, 4, 5, 8, 7, 6};
  for (int orientation = 1; orientation <= 8; ++orientation)
    EXPECT_EQ(oriented(oriented(image, orientation), opposite[orientation - 1]), image)
        << orientation;
}

}  // namespace
}  // namespace sftrun::images
