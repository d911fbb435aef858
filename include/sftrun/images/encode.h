#pragma once

#include <string>

#include "sftrun/images/image.h"

namespace sftrun::images {

/// A baseline JPEG file of the image, with colours at half the resolution, as Pillow's `save` writes it.
/// @param quality 1 to 100, libjpeg's
/// @throws DataError for an empty image, and for one with a side above 65500 pixels, libjpeg's limit
std::string encode_jpeg(const Image& image, int quality = 90);

}  // namespace sftrun::images
