#include "sftrun/images/decode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "images/image_files.h"
#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"

namespace sftrun::images {
namespace {

using fixtures::image_bytes;
using fixtures::image_cases;

std::string hash_of_pixels(const Image& image) {
  return xxh3_128(std::as_bytes(std::span(image.pixels)));
}

std::string hex_of_pixels(const Image& image) {
  std::string text;
  for (const uint8_t value : image.pixels) text += fmt::format("{:02x}", value);
  return text;
}

TEST(ReadHeader, SaysWhatPillowSays) {
  ASSERT_GT(image_cases("files").size(), 90U);
  for (const auto& expected : image_cases("files")) {
    SCOPED_TRACE(expected.at("file"));
    const ImageHeader header = read_header(image_bytes(expected.at("file")));
    EXPECT_EQ(name_of(header.format), expected.at("format").get<std::string>());
    EXPECT_EQ(name_of(header.mode), expected.at("mode").get<std::string>());
    EXPECT_EQ(header.orientation, expected.at("orientation").get<int>());
    EXPECT_EQ(header.stored_width, expected.at("stored").at(0).get<int64_t>());
    EXPECT_EQ(header.stored_height, expected.at("stored").at(1).get<int64_t>());
    EXPECT_EQ(header.width(), expected.at("size").at(0).get<int64_t>());
    EXPECT_EQ(header.height(), expected.at("size").at(1).get<int64_t>());
  }
}

/// The fix says how the file becomes one that is read.
TEST(ReadHeader, SaysWhatToDoWithOtherKinds) {
  using namespace std::string_literals;
  for (const auto& [bytes, part] : std::vector<std::pair<std::string, std::string>>{
           {"GIF89a"s, "magick 'picture.gif[0]' picture.png"},
           {"BM\x46"s, "Image.open(\"picture.bmp\")"},
           {"II*\0"s, "magick picture.bmp"},
           {"\0\0\0\x18"s + "ftypisom", "ffmpeg -i clip.mp4"},
           {"version https://git-lfs.github.com", "`git lfs pull`"},
           {"<html>", "download"},
           {"", "download"}})
    try {
      read_header(std::as_bytes(std::span(bytes)));
      FAIL() << bytes;
    } catch (const DataError& error) {
      EXPECT_NE(error.fix().find(part), std::string::npos) << error.fix();
    }
}

TEST(Decode, GivesThePixelsOfPillow) {
  for (const auto& expected : image_cases("files")) {
    SCOPED_TRACE(expected.at("file"));
    const Image image = decode(image_bytes(expected.at("file")));
    EXPECT_EQ(image.width, expected.at("size").at(0).get<int64_t>());
    EXPECT_EQ(image.height, expected.at("size").at(1).get<int64_t>());
    EXPECT_EQ(hash_of_pixels(image), expected.at("xxh3").get<std::string>());
    if (!expected.contains("pixels")) continue;
    EXPECT_EQ(hex_of_pixels(image), expected.at("pixels").get<std::string>());
  }
}

TEST(Decode, RefusesWhatPillowRefuses) {
  for (const auto& expected : image_cases("refused")) {
    SCOPED_TRACE(expected.at("file"));
    try {
      decode(image_bytes(expected.at("file")), {}, "photo.jpg");
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      EXPECT_NE(error.message().find(expected.at("message").get<std::string>()), std::string::npos)
          << error.message();
      EXPECT_EQ(error.where(), "photo.jpg");
      EXPECT_FALSE(error.fix().empty());
    }
  }
}

std::string refusal(std::span<const std::byte> bytes, const DecodeLimits& limits) {
  try {
    decode(bytes, limits);
  } catch (const DataError& error) {
    return error.message() + "; " + error.fix();
  }
  return "accepted";
}

TEST(Decode, RefusesFilesOverALimit) {
  const auto bytes = image_bytes("rgb.jpg");  // 37 x 29
  EXPECT_EQ(refusal(bytes, {.max_pixels = 37 * 29, .max_side = 37}), "accepted");
  EXPECT_EQ(
      refusal(bytes, {.max_pixels = 1000}),
      "the image has 37 x 29 pixels = 1073, and the limit is 1000 pixels; make the image smaller");
  EXPECT_EQ(refusal(bytes, {.max_side = 36}),
            "the image has 37 x 29 pixels, and the limit is 36 pixels for a side; make the image "
            "smaller");
  EXPECT_NE(refusal(bytes, {.max_bytes = 100}).find("and the limit is 100 bytes"),
            std::string::npos);
}

TEST(Decode, RefusesDecompressionBombsBeforeItDecodes) {
  // The greatest sizes that the formats have: too much memory, were they decoded.
  auto jpeg = image_bytes("grey.jpg");
  const std::string frame = {'\xFF', '\xC0', 0, 11, 8};
  const std::string text(reinterpret_cast<const char*>(jpeg.data()), jpeg.size());
  const size_t at = text.find(frame);
  ASSERT_NE(at, std::string::npos);
  std::memset(jpeg.data() + at + frame.size(), 0xFF, 4);
  EXPECT_NE(refusal(jpeg, {}).find("65535 x 65535 pixels = 4294836225"), std::string::npos);

  auto webp = image_bytes("animated.webp");
  const std::byte side[3] = {std::byte{0xFF}, std::byte{0x7F}, std::byte{0}};  // 32768 - 1
  std::copy_n(side, 3, webp.begin() + 24);
  std::copy_n(side, 3, webp.begin() + 27);
  EXPECT_NE(refusal(webp, {}).find(", and the limit is "), std::string::npos) << refusal(webp, {});
}

TEST(Decode, RefusesJpegFilesOfVeryManyScans) {
  const auto bytes = image_bytes("rgb-progressive.jpg");
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t last = text.rfind("\xFF\xDA"), end = text.rfind("\xFF\xD9");
  ASSERT_TRUE(last < end && end != std::string::npos);
  const auto with_scans = [&](int count) {
    std::string longer = text.substr(0, end);
    for (int i = 0; i < count; ++i) longer += text.substr(last, end - last);
    return longer + text.substr(end);
  };
  EXPECT_EQ(refusal(std::as_bytes(std::span<const char>(with_scans(100))), {}), "accepted");
  EXPECT_NE(refusal(std::as_bytes(std::span<const char>(with_scans(1000))), {})
                .find("it has more than 1000 scans"),
            std::string::npos);
}

TEST(Decode, IgnoresBytesBehindTheImage) {
  auto bytes = image_bytes("rgb.png");
  const Image image = decode(bytes);
  bytes.insert(bytes.end(), 1000, std::byte{0x55});
  EXPECT_EQ(decode(bytes), image);
}

}  // namespace
}  // namespace sftrun::images
