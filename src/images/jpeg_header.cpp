#include <fmt/format.h>

#include <optional>

#include "exif.h"
#include "formats.h"

namespace sftrun::images {

bool is_jpeg(Bytes bytes) {
  return text_of(bytes).starts_with("\xFF\xD8\xFF");
}

namespace {

// ISO/IEC 10918-1, table B.1.
constexpr uint8_t kSos = 0xDA, kApp1 = 0xE1;
bool is_frame_header(uint8_t marker) {
  const bool is_table = marker == 0xC4 || marker == 0xC8 || marker == 0xCC;
  return (marker >= 0xC0 && marker <= 0xCF && !is_table) || marker == 0xDE;
}
bool has_no_segment(uint8_t marker) {
  return (marker >= 0xD0 && marker <= 0xD9) || marker == 0xC8 || (marker >= 0xF0 && marker <= 0xFD);
}

/// Reads the segments up to the first scan, in the way of PIL.JpegImagePlugin.
class JpegSegments {
 public:
  explicit JpegSegments(const ImageFile& file) : file_(file), rest_(file.bytes.subspan(2)) {}

  ImageHeader header() {
    for (uint8_t marker = next_marker(); marker != kSos; marker = next_marker()) {
      if (has_no_segment(marker)) continue;
      const Bytes segment = next_segment();
      if (is_frame_header(marker)) read_frame(segment);
      if (marker == kApp1) read_app1(segment);
    }
    if (!has_frame_)
      throw_damaged(ImageFormat::kJpeg, file_, "a scan comes before the frame header");
    OrientationData orientation;
    if (has_exif_) orientation.exif = bytes_of(exif_);
    orientation.xmp = xmp_;
    header_.orientation = orientation_of(orientation);
    return header_;
  }

 private:
  uint8_t next_byte() {
    if (rest_.empty()) throw_truncated(ImageFormat::kJpeg, file_);
    const uint8_t byte = rest_[0];
    rest_ = rest_.subspan(1);
    return byte;
  }

  uint8_t next_marker() {
    while (true) {
      while (next_byte() != 0xFF) {
      }
      uint8_t marker = next_byte();
      while (marker == 0xFF) marker = next_byte();
      if (marker >= 0xC0) return marker;
      if (marker != 0)
        throw_damaged(ImageFormat::kJpeg, file_, fmt::format("FF {:02X} is not a marker", marker));
    }
  }

  Bytes next_segment() {
    if (rest_.size() < 2) throw_truncated(ImageFormat::kJpeg, file_);
    const uint64_t length = big_endian(rest_.first(2));
    if (length > rest_.size()) throw_truncated(ImageFormat::kJpeg, file_);
    const uint64_t used = length < 2 ? 2 : length;
    const Bytes segment = rest_.subspan(2, used - 2);
    rest_ = rest_.subspan(used);
    return segment;
  }

  void read_frame(Bytes segment) {
    if (segment.size() < 6)
      throw_damaged(ImageFormat::kJpeg, file_, "its frame header is too short");
    if (segment[0] != 8)
      throw_damaged(ImageFormat::kJpeg, file_,
                    fmt::format("it has {} bits per value, not 8", segment[0]));
    header_.format = ImageFormat::kJpeg;
    header_.stored_height = static_cast<int64_t>(big_endian(segment.subspan(1, 2)));
    header_.stored_width = static_cast<int64_t>(big_endian(segment.subspan(3, 2)));
    header_.mode = mode_of(segment[5]);
    if (header_.stored_width == 0 || header_.stored_height == 0)
      throw_damaged(ImageFormat::kJpeg, file_, "its width or height is 0");
    has_frame_ = true;
  }

  ImageMode mode_of(uint8_t components) const {
    switch (components) {
      case 1:
        return ImageMode::kGrey;
      case 3:
        return ImageMode::kRgb;
      case 4:
        return ImageMode::kCmyk;
      default:
        throw_damaged(ImageFormat::kJpeg, file_,
                      fmt::format("it has {} components, not 1, 3 or 4", components));
    }
  }

  void read_app1(Bytes segment) {
    constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
    const std::string_view text = text_of(segment);
    if (text.starts_with(kExif)) exif_ += text.substr(kExif.size());
    has_exif_ |= text.starts_with(kExif);
    if (text.starts_with(kXmp)) xmp_ = from(segment, kXmp.size());
  }

  const ImageFile& file_;
  Bytes rest_;
  ImageHeader header_;
  bool has_frame_ = false, has_exif_ = false;
  std::string exif_;  // of all segments together
  std::optional<Bytes> xmp_;
};

}  // namespace

ImageHeader jpeg_header(const ImageFile& file) {
  return JpegSegments(file).header();
}

}  // namespace sftrun::images
