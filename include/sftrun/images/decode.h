#pragma once

#include "sftrun/images/header.h"
#include "sftrun/images/image.h"

namespace sftrun {
class InputFile;
}

namespace sftrun::images {

/// What a file may ask for; checked by its header, before anything is decoded.
struct DecodeLimits {
  int64_t max_pixels =
      178'956'970;  ///< width x height; above it, Pillow refuses a file as a decompression bomb
  int64_t max_side = 65'535;      ///< pixels
  int64_t max_bytes = 1LL << 30;  ///< of the file
};

/// The header of a file that `decode` would not refuse for its size.
/// @throws DataError as `read_header`, and if the file is over a limit
ImageHeader read_header_within(std::span<const std::byte> bytes, const DecodeLimits& limits = {},
                               std::string_view where = {});

/// Whether a file has what stands at the end of its format: JPEG's end marker, PNG's IEND, as many bytes as WebP's header says. A file
/// without it is truncated, or has other bytes behind its end; `decode` tells. Reads the first and the last bytes only.
bool has_end(std::span<const std::byte> bytes);

/// The header of a file that is not truncated. Pixels are decoded only where the end of the format is missing.
/// @throws DataError as `read_header_within`; if the file is truncated
ImageHeader header_of_complete(std::span<const std::byte> bytes, const DecodeLimits& limits = {},
                               std::string_view where = {});
/// The same of a file, of which no more is read than that needs: of a large JPEG file its beginning and its end.
/// @throws DataError also if the file becomes shorter meanwhile
ImageHeader header_of_complete(const InputFile& file, const DecodeLimits& limits = {},
                               std::string_view where = {});

/// Decodes a JPEG, PNG or WebP file to what transformers' `load_image` makes of it, bit for bit:
///     PIL.ImageOps.exif_transpose(PIL.Image.open(file)).convert("RGB")
/// Alpha is dropped, not blended. Grey of 16 bits becomes min(value, 255), as Pillow has it. Of an animation, the first image.
///
/// Damaged data inside a JPEG are decoded as far as libjpeg does, as Pillow does. Thread-safe.
/// @param bytes the whole file
/// @param where the file's name, for errors
/// @throws DataError as `read_header`; if the file is over a limit, truncated, or cannot be decoded
Image decode(std::span<const std::byte> bytes, const DecodeLimits& limits = {},
             std::string_view where = {});

}  // namespace sftrun::images
