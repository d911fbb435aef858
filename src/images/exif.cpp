#include "exif.h"

#include <bit>
#include <cmath>

namespace sftrun::images {
namespace {

constexpr uint64_t kOrientationTag = 274;
constexpr size_t kEntryBytes = 12;  // of a TIFF directory: tag, type, count, value or its place

/// Types of TIFF values: TIFF 6.0, section 2, and IFD and LONG8 of its supplements.
enum TiffType : uint64_t {
  kByte = 1,
  kAscii,
  kShort,
  kLong,
  kRational,
  kSignedByte,
  kUndefined,
  kSignedShort,
  kSignedLong,
  kSignedRational,
  kFloat,
  kDouble,
  kIfd,
  kLong8 = 16,
};

uint64_t bytes_of_type(uint64_t type) {
  switch (type) {
    case kByte:
    case kAscii:
    case kSignedByte:
    case kUndefined:
      return 1;
    case kShort:
    case kSignedShort:
      return 2;
    case kLong:
    case kSignedLong:
    case kFloat:
    case kIfd:
      return 4;
    case kRational:
    case kSignedRational:
    case kDouble:
    case kLong8:
      return 8;
    default:
      return 0;
  }
}

class TiffReader {
 public:
  TiffReader(Bytes bytes, bool big) : bytes_(bytes), big_(big) {}

  uint64_t number(Bytes bytes) const { return big_ ? big_endian(bytes) : little_endian(bytes); }
  Bytes bytes() const { return bytes_; }

  /// The first of the values of a type; nothing for text and bytes.
  std::optional<double> value(uint64_t type, Bytes data) const {
    const uint64_t raw = number(part_of(data, 0, bytes_of_type(type)));
    const auto ratio = [&](double top, double bottom) -> std::optional<double> {
      if (bottom == 0) return std::nullopt;
      return top / bottom;
    };
    const uint64_t first = number(part_of(data, 0, 4)), second = number(part_of(data, 4, 4));
    switch (type) {
      case kShort:
      case kLong:
      case kIfd:
      case kLong8:
        return static_cast<double>(raw);
      case kSignedByte:
        return static_cast<int8_t>(raw);
      case kSignedShort:
        return static_cast<int16_t>(raw);
      case kSignedLong:
        return static_cast<int32_t>(raw);
      case kFloat:
        return std::bit_cast<float>(static_cast<uint32_t>(raw));
      case kDouble:
        return std::bit_cast<double>(raw);
      case kRational:
        return ratio(static_cast<double>(first), static_cast<double>(second));
      case kSignedRational:
        return ratio(static_cast<int32_t>(first), static_cast<int32_t>(second));
      default:
        return std::nullopt;
    }
  }

 private:
  Bytes bytes_;
  bool big_;
};

struct OrientationTag {
  bool is_there = false;
  std::optional<double> value;
};

/// The first entry with the tag, in the way of PIL.TiffImagePlugin: values that together are longer
/// than the data are passed over, and a value that is partly outside ends the directory.
OrientationTag tag_of(const TiffReader& tiff, uint64_t directory) {
  const Bytes count_bytes = part_of(tiff.bytes(), directory, 2);
  if (count_bytes.size() < 2) return {};
  const uint64_t count = tiff.number(count_bytes);
  uint64_t bytes_elsewhere = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const Bytes entry = part_of(tiff.bytes(), directory + 2 + i * kEntryBytes, kEntryBytes);
    if (entry.size() < kEntryBytes) break;
    const uint64_t type = tiff.number(entry.subspan(2, 2));
    const uint64_t size = tiff.number(entry.subspan(4, 4)) * bytes_of_type(type);
    if (size == 0) continue;  // an unknown type, or no value
    Bytes data = part_of(entry, 8, size);
    if (size > 4) {
      bytes_elsewhere += size;
      if (bytes_elsewhere > tiff.bytes().size()) continue;
      data = part_of(tiff.bytes(), tiff.number(entry.subspan(8, 4)), size);
    }
    if (data.size() < size) break;
    if (tiff.number(entry.subspan(0, 2)) == kOrientationTag) return {true, tiff.value(type, data)};
  }
  return {};
}

/// Without "Exif\0\0", which may be there twice.
Bytes without_exif_prefix(Bytes bytes) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  for (int i = 0; i < 2 && text_of(bytes).starts_with(kPrefix); ++i)
    bytes = bytes.subspan(kPrefix.size());
  return bytes;
}

int valid_orientation(double value) {
  return value >= 1 && value <= 8 && std::floor(value) == value ? static_cast<int>(value) : 1;
}

int xmp_orientation(Bytes xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  const std::string_view text = text_of(xmp);
  for (size_t at = text.find(kName); at != std::string_view::npos; at = text.find(kName, at + 1)) {
    std::string_view rest = text.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return valid_orientation(rest[0] - '0');
  }
  return 1;
}

/// Nothing if the bytes do not begin as a TIFF file does.
std::optional<TiffReader> tiff_reader(Bytes bytes) {
  if (bytes.size() < 8) return std::nullopt;
  const std::string_view begin = text_of(bytes.first(4));
  using std::literals::operator""sv;
  for (const auto mark : {"MM\0*"sv, "MM*\0"sv, "II*\0"sv, "II\0*"sv})
    if (begin == mark) return TiffReader(bytes, begin[0] == 'M');
  return std::nullopt;
}

}  // namespace

int orientation_of(const OrientationData& data) {
  const Bytes exif = without_exif_prefix(data.exif.value_or(Bytes{}));
  if (!exif.empty()) {
    const auto tiff = tiff_reader(exif);
    if (!tiff) return 1;
    const OrientationTag tag = tag_of(*tiff, tiff->number(exif.subspan(4, 4)));
    if (tag.is_there) return valid_orientation(tag.value.value_or(1));
  }
  return data.xmp ? xmp_orientation(*data.xmp) : 1;
}

}  // namespace sftrun::images
