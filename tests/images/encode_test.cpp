#include "sftrun/images/encode.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "images/image_files.h"
#include "sftrun/core/error.h"

namespace sftrun::images {
namespace {

Image slope(int64_t width, int64_t height) {
  Image image(width, height);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      uint8_t* pixel = image.row(y) + 3 * x;
      pixel[0] = static_cast<uint8_t>(3 * x), pixel[1] = static_cast<uint8_t>(4 * y);
      pixel[2] = static_cast<uint8_t>(200 - x - y);
    }
  return image;
}

int largest_difference(const Image& a, const Image& b) {
  int most = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i)
    most = std::max(most, std::abs(int{a.pixels[i]} - int{b.pixels[i]}));
  return most;
}

TEST(EncodeJpeg, IsDecodedToNearlyTheSamePixels) {
  for (const auto& [width, height] : {std::pair<int64_t, int64_t>(61, 37), {1, 1}, {16, 48}}) {
    const Image image = slope(width, height);
    const std::string file = encode_jpeg(image, 95);
    const ImageHeader header = read_header(std::as_bytes(std::span(file)));
    EXPECT_EQ(header.format, ImageFormat::kJpeg);
    const Image decoded = decode(std::as_bytes(std::span(file)));
    ASSERT_EQ(decoded.width, width);
    ASSERT_EQ(decoded.height, height);
    EXPECT_LE(largest_difference(decoded, image), 24) << width << " x " << height;
  }
}

TEST(EncodeJpeg, TakesFewerBytesAtALowerQuality) {
  const Image image = fixtures::random_image(64, 64, 1);
  EXPECT_LT(encode_jpeg(image, 20).size(), encode_jpeg(image, 90).size() / 2);
}

TEST(EncodeJpeg, RefusesWhatTheFormatCannotHold) {
  EXPECT_THROW(encode_jpeg(Image(0, 0)), DataError);
  EXPECT_THROW(encode_jpeg(Image(65'501, 1)), DataError);
}

}  // namespace
}  // namespace sftrun::images
