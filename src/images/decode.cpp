#include "sftrun/images/decode.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>

#include "formats.h"
#include "sftrun/core/error.h"
#include "sftrun/core/input_file.h"
#include "sftrun/images/transform.h"

namespace sftrun::images {
namespace {

void check_limit(std::string_view what, int64_t value, int64_t limit, std::string_view unit,
                 std::string_view where) {
  if (value <= limit) return;
  throw DataError(fmt::format("{}, and the limit is {} {}", what, limit, unit), std::string(where),
                  "make the image smaller");
}

void check_bytes(uint64_t num_bytes, const DecodeLimits& limits, std::string_view where) {
  check_limit(fmt::format("the image file has {} bytes", num_bytes),
              static_cast<int64_t>(num_bytes), limits.max_bytes, "bytes", where);
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
  check_bytes(bytes.size(), limits, where);
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

ImageHeader header_of_complete(std::span<const std::byte> bytes, const DecodeLimits& limits,
                               std::string_view where) {
  const ImageHeader header = read_header_within(bytes, limits, where);
  // Only pixels tell whether a file without its end is truncated.
  if (!has_end(bytes)) decode(bytes, limits, where);
  return header;
}

namespace {

constexpr uint64_t kBeginningBytes = 256 << 10, kEndBytes = 4 << 10;

/// Of a JPEG file, whose header precedes its pixels; nothing for other files, and where something is wrong: the whole file tells what.
/// @pre the file has as many bytes
std::optional<ImageHeader> header_of_parts(const InputFile& file, const DecodeLimits& limits,
                                           std::string_view where) {
  const std::string beginning = file.read(0, kBeginningBytes),
                    end = file.read(file.size() - kEndBytes, kEndBytes);
  if (!is_jpeg(bytes_of(beginning)) || !has_jpeg_end(end)) return std::nullopt;
  try {
    return read_header_within(std::as_bytes(std::span(beginning)), limits, where);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

ImageHeader header_of_complete(const InputFile& file, const DecodeLimits& limits,
                               std::string_view where) {
  check_bytes(file.size(), limits, where);
  if (file.size() > kBeginningBytes + kEndBytes)
    if (const auto header = header_of_parts(file, limits, where)) return *header;
  const std::string bytes = file.read(0, file.size());
  return header_of_complete(std::as_bytes(std::span(bytes)), limits, where);
}

Image decode(std::span<const std::byte> bytes, const DecodeLimits& limits, std::string_view where) {
  const ImageHeader header = read_header_within(bytes, limits, where);
  const ImageFile file{{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, where};
  return oriented(decode_stored(file, header), header.orientation);
}

}  // namespace sftrun::images
