#include "colours.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

/// Of a channel. The rescaling's factor is one of float64, and the product is rounded once: two float32 hold enough of it.
ColourFormula formula_of(const ImageProcessor& processor, Backend backend, double mean,
                         double std) {
  ColourFormula formula;
  const bool is_pil = backend == Backend::kPil;
  if (processor.do_rescale && (is_pil || !processor.do_normalize)) {
    formula.high = static_cast<float>(processor.rescale_factor);
    if (is_pil) formula.low = static_cast<float>(processor.rescale_factor - double{formula.high});
  }
  if (!processor.do_normalize) return formula;
  const float scale =
      processor.do_rescale && !is_pil ? static_cast<float>(1.0 / processor.rescale_factor) : 1.0F;
  formula.mean = static_cast<float>(mean) * scale;
  formula.std = static_cast<float>(std) * scale;
  return formula;
}

}  // namespace

ColourRows colours_of(const ImageProcessor& processor, Backend backend) {
  ColourTable table;
  std::array<ColourFormula, 3> formulas;
  for (size_t channel = 0; channel < 3; ++channel) {
    const double mean = processor.image_mean[channel], std = processor.image_std[channel];
    formulas[channel] = formula_of(processor, backend, mean, std);
    for (int level = 0; level < 256; ++level)
      table[channel][static_cast<size_t>(level)] =
          (backend == Backend::kPil ? of_pil : of_torchvision)(processor, level, mean, std);
  }
  return {table, formulas};
}

void write_planes(const TilePixels& tile, const ColourRows& colours, float* to) {
  const int64_t plane = tile.width * tile.height;
  for (int64_t y = 0; y < tile.height; ++y, to += tile.width)
    colours.write(tile.row(y), tile.width, to, to + plane, to + 2 * plane);
}

namespace {

/// Calls `write(top, left)` for each patch in the order of `form`.
template <typename Write>
void for_each_patch(int64_t width, int64_t height, const PatchForm& form, const Write& write) {
  const int64_t side = form.side, block = side * form.merge;
  for (int64_t top = 0; top < height; top += block)
    for (int64_t left = 0; left < width; left += block)
      for (int64_t y = top; y < top + block; y += side)
        for (int64_t x = left; x < left + block; x += side) write(y, x);
}

}  // namespace

void write_channel_last(const TilePixels& tile, const ColourRows& colours, const PatchForm& form,
                        float* to) {
  const ColourTable& table = colours.table();
  for_each_patch(tile.width, tile.height, form, [&](int64_t top, int64_t left) {
    for (int64_t y = 0; y < form.side; ++y) {
      const uint8_t* from = tile.row(top + y) + left * 3;
      for (int64_t x = 0; x < form.side; ++x, from += 3, to += 3) {
        to[0] = table[0][from[0]];
        to[1] = table[1][from[1]];
        to[2] = table[2][from[2]];
      }
    }
  });
}

namespace {

/// Rows of values of some frames, each in its three channels one after another.
struct ValueRows {
  std::vector<float> values;
  int64_t count, width, frames;
  ValueRows(int64_t count_, int64_t width_, int64_t frames_)
      : values(static_cast<size_t>(3 * frames_ * count_ * width_)),
        count(count_),
        width(width_),
        frames(frames_) {}
  float* at(int64_t frame, int64_t row, int64_t channel) {
    return values.data() + (3 * (frame * count + row) + channel) * width;
  }
};

/// One patch: [3, times, side, side].
/// @param kSide `side`, with which copies are inlined; 0: any
template <int64_t kSide>
float* write_patch(ValueRows& rows, int64_t top, int64_t left, int64_t side, int64_t times,
                   float* to) {
  const int64_t size = kSide > 0 ? kSide : side;
  for (int64_t channel = 0; channel < 3; ++channel)
    for (int64_t time = 0; time < times; ++time) {
      const int64_t frame = std::min(time, rows.frames - 1);
      for (int64_t y = 0; y < size; ++y, to += size)
        std::memcpy(to, rows.at(frame, top + y, channel) + left,
                    static_cast<size_t>(size) * sizeof(float));
    }
  return to;
}

}  // namespace

/// The values of a row of blocks are made first: then patches are written from the first byte to the last.
void write_merge_blocks(std::span<const TilePixels> frames, const ColourRows& colours,
                        const PatchForm& form, int64_t times, float* to) {
  const int64_t side = form.side;
  const auto write = side == 14 ? write_patch<14> : side == 16 ? write_patch<16> : write_patch<0>;
  const int64_t block = side * form.merge, width = frames[0].width, height = frames[0].height;
  const auto num_frames = static_cast<int64_t>(frames.size());
  ValueRows rows(block, width, num_frames);
  for (int64_t top = 0; top < height; top += block) {
    for (int64_t frame = 0; frame < num_frames; ++frame)
      for (int64_t y = 0; y < block; ++y)
        colours.write(frames[static_cast<size_t>(frame)].row(top + y), width, rows.at(frame, y, 0),
                      rows.at(frame, y, 1), rows.at(frame, y, 2));
    for_each_patch(width, block, form,
                   [&](int64_t y, int64_t x) { to = write(rows, y, x, side, times, to); });
  }
}

}  // namespace sftrun::images
