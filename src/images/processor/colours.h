#pragma once

#include <cstdint>
#include <span>

#include "colour_rows.h"
#include "sftrun/images/process.h"

namespace sftrun::images {

/// What levels become: rescaled and normalised in the order and the types of the backend.
ColourRows colours_of(const ImageProcessor& processor, Backend backend);

/// Pixels as they are in memory.
struct TilePixels {
  const uint8_t* first;  ///< of the tile's corner
  int64_t stride;        ///< bytes from one row to the next
  int64_t width, height;

  const uint8_t* row(int64_t y) const { return first + y * stride; }
};

/// [3, height, width]
void write_planes(const TilePixels& tile, const ColourRows& colours, float* to);
/// [patches, side, side, 3]
void write_channel_last(const TilePixels& tile, const ColourRows& colours, const PatchForm& form,
                        float* to);
/// [patches, 3, times, side, side]
/// @param frames of one size, at most `times`; the last one stands for those that are missing
void write_merge_blocks(std::span<const TilePixels> frames, const ColourRows& colours,
                        const PatchForm& form, int64_t times, float* to);

}  // namespace sftrun::images
