#pragma once

#include <optional>

#include "byte_view.h"

namespace sftrun::images {

/// What a file carries about its orientation, as Pillow collects it.
struct OrientationData {
  std::optional<Bytes> exif;  ///< with or without "Exif\0\0" in front
  std::optional<Bytes> xmp;
};

/// The orientation (1 to 8) as PIL.Image.Image.getexif finds it: the tag 274 of the first directory, of any numeric type; else
/// tiff:Orientation of the XMP data. 1 if there is none, it is damaged or not 1 to 8.
int orientation_of(const OrientationData& data);

}  // namespace sftrun::images
