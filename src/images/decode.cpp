#include "sftrun/images/decode.h"

#include <fmt/format.h>

#include <cstring>

#include "formats.h"
#include "sftrun/core/error.h"
#include "sftrun/images/transform.h"

namespace sftrun::images {
namespace {

void check_limit(std::string_view what, int64_t value, int64_t limit, std::string_view unit,
                 std::string_view where) {
  if (value <= limit) return;
  throw DataError(fmt::format("{}, and the limit is {} {}", what, limit, unit), std::string(where),
                  "make the image smaller");
}

void check_limits(const ImageHeader& header, const DecodeLimits& limits, std::string_view where) {
  const int64_t width = header.stored_width, height = header.stored_height;
  const std::string size = fmt::format("the image has {} x {} pixels", width, height);
  check_limit(size, std::max(width, height), limits.max_side, "pixels for a side", where);
  check_limit(fmt::format("{} = {}", size, width * height), width * height, limits.max_pixels,
              "pixels", where);
}

Image decode_stored(const ImageFile& file, const ImageHeader& header) {
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(file, header);
    case ImageFormat::kPng:
      return decode_png(file, header);
    case ImageFormat::kWebp:
      return decode_webp(file, header);
  }
  return {};
}

}  // namespace

ImageHeader read_header_within(std::span<const std::byte> bytes, const DecodeLimits& limits,
                               std::string_view where) {
  const auto size = static_cast<int64_t>(bytes.size());
  check_limit(fmt::format("the image file has {} bytes", size), size, limits.max_bytes, "bytes",
              where);
  const ImageHeader header = read_header(bytes, where);
  check_limits(header, limits, where);
  return header;
}

namespace {

bool has_jpeg_end(std::string_view file) {
  const size_t last = file.find_last_not_of(std::string_view("\0\r\n", 3));  // padding
  return last != std::string_view::npos && file.substr(0, last + 1).ends_with("\xFF\xD9");
}

bool has_webp_end(std::string_view file) {
  constexpr size_t kRiff = 8;  // "RIFF" and the size of what follows
  if (file.size() < kRiff) return false;
  uint32_t size = 0;
  std::memcpy(&size, file.data() + 4, sizeof(size));  // little-endian
  return size <= file.size() - kRiff;
}

}  // namespace

bool has_end(std::span<const std::byte> bytes) {
  constexpr std::string_view kIend("\0\0\0\0IEND\xAE\x42\x60\x82", 12);
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Bytes view{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  if (is_jpeg(view)) return has_jpeg_end(file);
  if (is_png(view)) return file.ends_with(kIend);
  return has_webp_end(file);
}

Image decode(std::span<const std::byte> bytes, const DecodeLimits& limits, std::string_view where) {
  const ImageHeader header = read_header_within(bytes, limits, where);
  const ImageFile file{{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, where};
  return oriented(decode_stored(file, header), header.orientation);
}

}  // namespace sftrun::images
