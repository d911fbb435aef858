#include "sftrun/images/transform.h"

#include <algorithm>
#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::images {

Image crop(const Image& image, int64_t left, int64_t top, int64_t width, int64_t height) {
  Image result;
  crop(image, left, top, width, height, result);
  return result;
}

void crop(const Image& image, int64_t left, int64_t top, int64_t width, int64_t height,
          Image& result) {
  SFTRUN_CHECK(width >= 0 && height >= 0);
  result.reshape(width, height);
  const int64_t first_x = std::max<int64_t>(left, 0), end_x = std::min(left + width, image.width);
  const int64_t first_y = std::max<int64_t>(top, 0), end_y = std::min(top + height, image.height);
  const bool has_margins =
      end_x - first_x < width || end_y - first_y < height || first_x >= end_x || first_y >= end_y;
  if (has_margins) std::fill(result.pixels.begin(), result.pixels.end(), uint8_t{0});
  if (first_x >= end_x) return;
  for (int64_t y = first_y; y < end_y; ++y)
    std::memcpy(result.row(y - top) + (first_x - left) * 3, image.row(y) + first_x * 3,
                static_cast<size_t>((end_x - first_x) * 3));
}

Image pad(const Image& image, int64_t left, int64_t top, int64_t right, int64_t bottom,
          Colour colour) {
  Image result;
  pad(image, left, top, right, bottom, colour, result);
  return result;
}

void pad(const Image& image, int64_t left, int64_t top, int64_t right, int64_t bottom,
         Colour colour, Image& result) {
  SFTRUN_CHECK(left >= 0 && top >= 0 && right >= 0 && bottom >= 0);
  result.reshape(left + image.width + right, top + image.height + bottom);
  const uint8_t values[3] = {colour.red, colour.green, colour.blue};
  std::vector<uint8_t> row(static_cast<size_t>(result.width * 3));
  for (size_t i = 0; i < row.size(); ++i) row[i] = values[i % 3];
  for (int64_t y = 0; y < result.height; ++y) std::copy(row.begin(), row.end(), result.row(y));
  for (int64_t y = 0; y < image.height; ++y)
    std::memcpy(result.row(y + top) + left * 3, image.row(y), static_cast<size_t>(image.width * 3));
}

namespace {

/// Where a pixel of the turned image comes from: base + x * step_x + y * step_y, in pixels.
struct Turn {
  int64_t base, step_x, step_y;
};
Turn turn_of(int orientation, int64_t w, int64_t h) {
  switch (orientation) {
    case 2:
      return {w - 1, -1, w};
    case 3:
      return {w * h - 1, -1, -w};
    case 4:
      return {w * (h - 1), 1, -w};
    case 5:
      return {0, w, 1};
    case 6:
      return {w * (h - 1), -w, 1};
    case 7:
      return {w * h - 1, -w, -1};
    default:
      return {w - 1, w, -1};  // 8
  }
}

}  // namespace

int64_t centred(int64_t size, int64_t wanted, OddPadding odd) {
  if (size >= wanted) return (size - wanted) / 2;
  const int64_t missing = wanted - size;
  return odd == OddPadding::kBefore ? -((missing + 1) / 2) : -(missing / 2);
}

Image centre_crop(const Image& image, int64_t width, int64_t height, OddPadding odd) {
  return crop(image, centred(image.width, width, odd), centred(image.height, height, odd), width,
              height);
}

Image oriented(Image image, int orientation) {
  SFTRUN_CHECK(orientation >= 1 && orientation <= 8);
  if (orientation == 1 || image.pixels.empty()) return image;
  const bool exchanges = orientation >= 5;
  Image result(exchanges ? image.height : image.width, exchanges ? image.width : image.height);
  const Turn turn = turn_of(orientation, image.width, image.height);
  // In tiles, so that columns of the one image and rows of the other are both in the cache.
  constexpr int64_t kTile = 32;
  for (int64_t top = 0; top < result.height; top += kTile)
    for (int64_t left = 0; left < result.width; left += kTile)
      for (int64_t y = top; y < std::min(top + kTile, result.height); ++y)
        for (int64_t x = left; x < std::min(left + kTile, result.width); ++x)
          std::memcpy(result.row(y) + x * 3,
                      image.pixels.data() + (turn.base + x * turn.step_x + y * turn.step_y) * 3, 3);
  return result;
}

}  // namespace sftrun::images
