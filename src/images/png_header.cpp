#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "exif.h"
#include "formats.h"
#include "sftrun/core/strings.h"

namespace sftrun::images {

bool is_png(Bytes bytes) {
  return text_of(bytes).starts_with("\x89PNG\r\n\x1A\n");
}

bool PngChunks::next(PngChunk& chunk, bool check_crc) {
  if (rest_.size() < 8) return false;
  chunk.size = big_endian(rest_.first(4));
  chunk.name = text_of(rest_.subspan(4, 4));
  const bool is_name = std::all_of(chunk.name.begin(), chunk.name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  if (!is_name) return false;
  chunk.data = part_of(rest_, 8, chunk.size);
  const Bytes crc = part_of(rest_, 8 + chunk.size, 4);
  chunk.crc_is_right = check_crc && crc.size() == 4 &&
                       crc32(crc32(0, rest_.data() + 4, 4), chunk.data.data(),
                             static_cast<uInt>(chunk.data.size())) == big_endian(crc);
  rest_ = from(rest_, 12 + chunk.size);
  return true;
}

namespace {

constexpr size_t kMaxTextBytes = 1 << 20;  // of a compressed text, as in Pillow

/// The inflated text; nothing if it is damaged or too long.
std::optional<std::string> inflated(Bytes data) {
  std::string text(kMaxTextBytes, '\0');
  auto size = static_cast<uLongf>(text.size());
  if (uncompress(reinterpret_cast<Bytef*>(text.data()), &size, data.data(),
                 static_cast<uLong>(data.size())) != Z_OK)
    return std::nullopt;
  text.resize(size);
  return text;
}

/// The bytes of hexadecimal digits, of which white space is no part; nothing if there is something else.
std::optional<std::string> bytes_of_hex(std::string_view digits) {
  std::string bytes;
  int high = -1;
  for (const char c : digits) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    if (!std::isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    const int value = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (high >= 0) bytes += static_cast<char>(high << 4 | value);
    high = high >= 0 ? -1 : value;
  }
  if (high >= 0) return std::nullopt;
  return bytes;
}

/// What ImageMagick writes as text: "\nexif\n    <size>\n<hexadecimal digits>".
std::optional<std::string> bytes_of_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    text.remove_prefix(end + 1);
  }
  return bytes_of_hex(text);
}

/// What texts and eXIf chunks say about the orientation, in the way of PIL.PngImagePlugin.
class PngOrientation {
 public:
  void read(const PngChunk& chunk) {
    if (chunk.name == "eXIf") exif_ = std::string(text_of(chunk.data));
    if (chunk.name == "tEXt" || chunk.name == "zTXt") read_text(chunk);
    if (chunk.name == "iTXt") read_international_text(chunk.data);
  }

  int orientation() const {
    OrientationData data;
    std::optional<std::string> profile;
    if (!exif_ && profile_) profile = bytes_of_raw_profile(*profile_);
    if (!exif_ && profile_ && !profile) return 1;
    if (exif_ || profile) data.exif = bytes_of(exif_ ? *exif_ : *profile);
    if (xmp_) data.xmp = bytes_of(*xmp_);
    return orientation_of(data);
  }

 private:
  void read_text(const PngChunk& chunk) {
    const std::string_view text = text_of(chunk.data);
    const size_t end = text.find('\0');
    if (end == std::string_view::npos) return;
    const std::string_view key = text.substr(0, end);
    const bool is_profile = key == "Raw profile type exif";
    if (chunk.name == "tEXt") {
      if (key == "exif") exif_ = std::string(text.substr(end + 1));
      if (is_profile) profile_ = std::string(text.substr(end + 1));
    } else if (is_profile) {
      profile_ = inflated(from(chunk.data, end + 2)).value_or("");
    }
  }

  /// keyword \0 compressed method language \0 translated keyword \0 text
  void read_international_text(Bytes data) {
    constexpr std::string_view kKey("XML:com.adobe.xmp\0", 18);
    if (!text_of(data).starts_with(kKey)) return;
    const Bytes rest = from(data, kKey.size());
    const size_t language_end = text_of(rest).find('\0', 2);
    if (rest.size() < 2 || language_end == std::string_view::npos) return;
    const size_t key_end = text_of(rest).find('\0', language_end + 1);
    if (key_end == std::string_view::npos) return;
    const Bytes text = from(rest, key_end + 1);
    if (rest[0] == 0) {
      xmp_ = std::string(text_of(text));
    } else if (rest[1] == 0) {
      if (auto plain = inflated(text)) xmp_ = std::move(plain);
    }
  }

  std::optional<std::string> exif_, profile_, xmp_;
};

struct PngKind {
  uint8_t bits, colour_type;
  ImageMode mode;
};
constexpr PngKind kPngKinds[] = {
    {1, 0, ImageMode::kBit},     {2, 0, ImageMode::kGrey},    {4, 0, ImageMode::kGrey},
    {8, 0, ImageMode::kGrey},    {16, 0, ImageMode::kGrey16}, {8, 2, ImageMode::kRgb},
    {16, 2, ImageMode::kRgb},    {1, 3, ImageMode::kPalette}, {2, 3, ImageMode::kPalette},
    {4, 3, ImageMode::kPalette}, {8, 3, ImageMode::kPalette}, {8, 4, ImageMode::kGreyA},
    {16, 4, ImageMode::kRgba},   {8, 6, ImageMode::kRgba},    {16, 6, ImageMode::kRgba},
};

void read_ihdr(const ImageFile& file, Bytes data, ImageHeader& header) {
  if (data.size() < 13) throw_damaged(ImageFormat::kPng, file, "its IHDR chunk is too short");
  header.format = ImageFormat::kPng;
  header.stored_width = static_cast<int64_t>(big_endian(data.first(4)));
  header.stored_height = static_cast<int64_t>(big_endian(data.subspan(4, 4)));
  if (header.stored_width == 0 || header.stored_height == 0)
    throw_damaged(ImageFormat::kPng, file, "its width or height is 0");
  if (header.stored_width > INT32_MAX || header.stored_height > INT32_MAX)
    throw_damaged(ImageFormat::kPng, file, "its width or height is above 2147483647");
  const auto* kind = std::find_if(
      std::begin(kPngKinds), std::end(kPngKinds),
      [&](const PngKind& one) { return one.bits == data[8] && one.colour_type == data[9]; });
  if (kind == std::end(kPngKinds))
    throw_damaged(ImageFormat::kPng, file,
                  fmt::format("PNG has no colour type {} with {} bits", data[9], data[8]));
  header.mode = kind->mode;
}

}  // namespace

ImageHeader png_header(const ImageFile& file) {
  ImageHeader header;
  PngOrientation orientation;
  PngChunks chunks(file.bytes);
  PngChunk chunk;
  bool has_header = false, has_data = false, is_animated = false;
  while (chunks.next(chunk, !has_data)) {
    has_data |= chunk.name == "IDAT";
    is_animated |= chunk.name == "acTL";
    if (has_data && is_animated && chunk.name == "fcTL") break;  // further images, as in Pillow
    const bool is_cut = chunk.data.size() < chunk.size;
    // The decoder finds out whether the pixels are complete.
    if (chunk.name == "IEND" || (chunk.name == "IDAT" && is_cut)) break;
    if (is_cut) throw_truncated(ImageFormat::kPng, file);
    if (!has_data && !chunk.crc_is_right)
      throw_damaged(ImageFormat::kPng, file,
                    fmt::format("the checksum of its chunk {} is wrong", chunk.name));
    if (chunk.name == "IHDR" && !has_data) {
      read_ihdr(file, chunk.data, header);
      has_header = true;
    }
    orientation.read(chunk);
  }
  if (!has_header) throw_damaged(ImageFormat::kPng, file, "it has no IHDR chunk");
  if (!has_data) throw_truncated(ImageFormat::kPng, file);
  header.orientation = orientation.orientation();
  return header;
}

}  // namespace sftrun::images
