#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

/// Compressed files that hold their text as it is: the formats' frames without their methods.
namespace sftrun::fuzz {

inline std::string little_endian(uint64_t value, size_t num_bytes) {
  std::string bytes;
  for (size_t i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// Of gzip: RFC 1952, section 8.
inline uint32_t crc32(std::string_view text) {
  uint32_t crc = UINT32_MAX;
  for (const char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

/// One gzip member of one stored block (RFC 1951, 3.2.4). @param text of less than 64 KiB
inline std::string gzip_member(std::string_view text) {
  const auto size = static_cast<uint16_t>(text.size());
  return std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11) + little_endian(size, 2) +
         little_endian(static_cast<uint16_t>(~size), 2) + std::string(text) +
         little_endian(crc32(text), 4) + little_endian(size, 4);
}

/// One Zstandard frame of one raw block (RFC 8878, 3.1.1): single segment, its size in four bytes.
inline std::string zstd_frame(std::string_view text) {
  return std::string("\x28\xb5\x2f\xfd\xa0", 5) + little_endian(text.size(), 4) +
         little_endian(text.size() << 3 | 1, 3) + std::string(text);
}

/// The text in members or frames of `step` bytes each.
template <typename Pack>
std::string packed(std::string_view text, size_t step, Pack&& pack) {
  std::string file;
  do {
    file += pack(text.substr(0, step));
    text.remove_prefix(std::min(step, text.size()));
  } while (!text.empty());
  return file;
}

}  // namespace sftrun::fuzz
