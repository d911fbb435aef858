#include <webp/decode.h>

#include <optional>

#include "exif.h"
#include "formats.h"

namespace sftrun::images {
namespace {

// Flags of a VP8X chunk: https://developers.google.com/speed/webp/docs/riff_container
constexpr uint8_t kXmpFlag = 0x04, kExifFlag = 0x08;

/// The data of the first chunk of a name behind the VP8X chunk.
std::optional<Bytes> webp_chunk(Bytes file, std::string_view name) {
  Bytes rest = from(part_of(file, 0, 8 + little_endian(file.subspan(4, 4))), 12);
  while (rest.size() >= 8) {
    const uint64_t size = little_endian(rest.subspan(4, 4));
    const Bytes data = part_of(rest, 8, size);
    if (data.size() < size) break;
    if (text_of(rest.first(4)) == name) return data;
    rest = from(rest, 8 + size + (size & 1));
  }
  return std::nullopt;
}

}  // namespace

bool is_webp(Bytes bytes) {
  if (bytes.size() < 16) return false;
  const std::string_view text = text_of(bytes), kind = text.substr(12, 4);
  return text.starts_with("RIFF") && text.substr(8, 4) == "WEBP" &&
         (kind == "VP8 " || kind == "VP8L" || kind == "VP8X");
}

ImageHeader webp_header(const ImageFile& file) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(file.bytes.data(), file.bytes.size(), &features);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA) throw_truncated(ImageFormat::kWebp, file);
  if (status != VP8_STATUS_OK || features.width <= 0 || features.height <= 0)
    throw_damaged(ImageFormat::kWebp, file, "its header cannot be read");
  ImageHeader header;
  header.format = ImageFormat::kWebp;
  header.mode = features.has_alpha ? ImageMode::kRgba : ImageMode::kRgb;
  header.stored_width = features.width;
  header.stored_height = features.height;
  if (text_of(file.bytes).substr(12, 4) != "VP8X" || file.bytes.size() < 21) return header;
  OrientationData orientation;
  if (file.bytes[20] & kExifFlag) orientation.exif = webp_chunk(file.bytes, "EXIF");
  if (file.bytes[20] & kXmpFlag) orientation.xmp = webp_chunk(file.bytes, "XMP ");
  header.orientation = orientation_of(orientation);
  return header;
}

}  // namespace sftrun::images
