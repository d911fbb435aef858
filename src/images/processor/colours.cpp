#include "colours.h"

#include <cstring>

// Compiled without fused multiply-adds: every operation rounds, as in NumPy and PyTorch.
namespace sftrun::images {

namespace {

float of_pil(const ImageProcessor& processor, int level, double mean, double std) {
  float value = processor.do_rescale
                    ? static_cast<float>(static_cast<double>(level) * processor.rescale_factor)
                    : static_cast<float>(level);
  if (processor.do_normalize) value = (value - static_cast<float>(mean)) / static_cast<float>(std);
  return value;
}

float of_torchvision(const ImageProcessor& processor, int level, double mean, double std) {
  const auto value = static_cast<float>(level);
  if (!processor.do_normalize)
    return processor.do_rescale ? value * static_cast<float>(processor.rescale_factor) : value;
  const float scale =
      processor.do_rescale ? static_cast<float>(1.0 / processor.rescale_factor) : 1.0F;
  return (value - static_cast<float>(mean) * scale) / (static_cast<float>(std) * scale);
}

/// One row of `count` pixels to three places.
void write_row(const uint8_t* from, int64_t count, const ColourTable& colours, float* red,
               float* green, float* blue) {
  for (int64_t x = 0; x < count; ++x, from += 3) {
    red[x] = colours[0][from[0]];
    green[x] = colours[1][from[1]];
    blue[x] = colours[2][from[2]];
  }
}

}  // namespace

ColourTable colours_of(const ImageProcessor& processor, Backend backend) {
  ColourTable table;
  for (size_t channel = 0; channel < 3; ++channel)
    for (int level = 0; level < 256; ++level)
      table[channel][static_cast<size_t>(level)] =
          (backend == Backend::kPil ? of_pil : of_torchvision)(
              processor, level, processor.image_mean[channel], processor.image_std[channel]);
  return table;
}

void write_planes(const TilePixels& tile, const ColourTable& colours, float* to) {
  const int64_t plane = tile.width * tile.height;
  for (int64_t y = 0; y < tile.height; ++y, to += tile.width)
    write_row(tile.row(y), tile.width, colours, to, to + plane, to + 2 * plane);
}

void write_channel_last(const TilePixels& tile, const ColourTable& colours, int64_t side,
                        float* to) {
  for (int64_t top = 0; top < tile.height; top += side)
    for (int64_t left = 0; left < tile.width; left += side)
      for (int64_t y = 0; y < side; ++y) {
        const uint8_t* from = tile.row(top + y) + left * 3;
        for (int64_t x = 0; x < side; ++x, from += 3, to += 3) {
          to[0] = colours[0][from[0]];
          to[1] = colours[1][from[1]];
          to[2] = colours[2][from[2]];
        }
      }
}

namespace {

/// [3, times, side, side]
void write_patch(const uint8_t* corner, int64_t stride, const ColourTable& colours, int64_t side,
                 int64_t times, float* to) {
  const int64_t frame = side * side, channel = frame * times;
  for (int64_t y = 0; y < side; ++y) {
    float* row = to + y * side;
    write_row(corner + y * stride, side, colours, row, row + channel, row + 2 * channel);
  }
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t t = 1; t < times; ++t)
      std::memcpy(to + c * channel + t * frame, to + c * channel,
                  static_cast<size_t>(frame) * sizeof(float));
}

}  // namespace

void write_merge_blocks(const TilePixels& tile, const ColourTable& colours, int64_t side,
                        int64_t merge, int64_t times, float* to) {
  const int64_t block = side * merge, values = 3 * times * side * side;
  for (int64_t top = 0; top < tile.height; top += block)
    for (int64_t left = 0; left < tile.width; left += block)
      for (int64_t y = top; y < top + block; y += side)
        for (int64_t x = left; x < left + block; x += side, to += values)
          write_patch(tile.row(y) + x * 3, tile.stride, colours, side, times, to);
}

}  // namespace sftrun::images
