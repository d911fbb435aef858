#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace sftrun::images {

enum class ImageFormat { kJpeg, kPng, kWebp };
std::string_view name_of(ImageFormat format);  ///< "JPEG"

/// What the pixels of a file are, as Pillow's `Image.mode` tells it.
enum class ImageMode {
  kBit,      ///< "1": black and white
  kGrey,     ///< "L"
  kGrey16,   ///< "I;16"
  kGreyA,    ///< "LA"
  kPalette,  ///< "P"
  kRgb,      ///< "RGB"
  kRgba,     ///< "RGBA"; also grey of 16 bits with alpha
  kCmyk,     ///< "CMYK"; also YCCK
};
std::string_view name_of(ImageMode mode);  ///< Pillow's name

struct ImageHeader {
  ImageFormat format = ImageFormat::kJpeg;
  ImageMode mode = ImageMode::kRgb;
  /// In the file, in pixels.
  int64_t stored_width = 0, stored_height = 0;
  /// EXIF's orientation, 1 to 8; 1 if there is none or it is damaged.
  int orientation = 1;

  /// What `decode` returns: sides are exchanged by the orientations 5 to 8.
  int64_t width() const { return orientation < 5 ? stored_width : stored_height; }
  int64_t height() const { return orientation < 5 ? stored_height : stored_width; }
};

/// Reads what a JPEG, PNG or WebP file says about itself, without decoding pixels.
///
/// @param bytes the whole file: PNG and WebP may have EXIF data at its end. Only headers are read.
/// @param where the file's name, for errors
/// @throws DataError if the file has another format, which is named if it is known, or a header that is damaged, truncated or
///         of a kind that Pillow does not decode (JPEG of 12 bits, sizes of 0).
ImageHeader read_header(std::span<const std::byte> bytes, std::string_view where = {});

}  // namespace sftrun::images
