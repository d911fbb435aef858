#pragma once

#include <cstdint>
#include <vector>

/// Images for vision-language models: what a file holds, its pixels, and what transformers' image processors do with them.
namespace sftrun::images {

/// A decoded image.
struct Image {
  int64_t width = 0, height = 0;
  /// [height, width, 3] uint8: red, green, blue; rows from the top, without gaps.
  std::vector<uint8_t> pixels;

  Image() = default;
  /// Black.
  Image(int64_t width_, int64_t height_)
      : width(width_), height(height_), pixels(static_cast<size_t>(width_ * height_ * 3)) {}

  /// Takes another size. Its pixels are then any; memory that is large enough is used again, since new pages take longer to get than to
  /// fill.
  void reshape(int64_t width_, int64_t height_) {
    width = width_, height = height_;
    pixels.resize(static_cast<size_t>(width_ * height_ * 3));
  }

  uint8_t* row(int64_t y) { return pixels.data() + y * width * 3; }
  const uint8_t* row(int64_t y) const { return pixels.data() + y * width * 3; }
  bool operator==(const Image&) const = default;
};

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
};

}  // namespace sftrun::images
