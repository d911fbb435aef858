#pragma once

#include <string>

#include "byte_view.h"
#include "sftrun/images/header.h"
#include "sftrun/images/image.h"

namespace sftrun::images {

/// A file whose format is known by its first bytes.
struct ImageFile {
  Bytes bytes;
  std::string_view where;  ///< for errors
};

bool is_jpeg(Bytes bytes);
bool is_png(Bytes bytes);
bool is_webp(Bytes bytes);

// @throws DataError
ImageHeader jpeg_header(const ImageFile& file);
ImageHeader png_header(const ImageFile& file);
ImageHeader webp_header(const ImageFile& file);

// Pixels as they are stored, without EXIF's orientation. `header`: of the same file; decoders refuse
// a file that turns out to have another size.
// @throws DataError
Image decode_jpeg(const ImageFile& file, const ImageHeader& header);
Image decode_png(const ImageFile& file, const ImageHeader& header);
Image decode_webp(const ImageFile& file, const ImageHeader& header);

/// @throws DataError "the JPEG file is damaged: <what>"
[[noreturn]] void throw_damaged(ImageFormat format, const ImageFile& file, std::string_view what);
/// @throws DataError "the JPEG file is truncated"
[[noreturn]] void throw_truncated(ImageFormat format, const ImageFile& file);

/// The chunks of a PNG file in turn.
struct PngChunk {
  std::string_view name;
  Bytes data;
  uint64_t size = 0;          ///< that the chunk claims; data is shorter if the file ends before
  bool crc_is_right = false;  ///< only known if asked for
};
class PngChunks {
 public:
  explicit PngChunks(Bytes file) : rest_(from(file, 8)) {}
  /// False at the end of the file, and where no chunk begins.
  bool next(PngChunk& chunk, bool check_crc);

 private:
  Bytes rest_;
};

}  // namespace sftrun::images
