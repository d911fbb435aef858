#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sftrun::images {

using Bytes = std::span<const uint8_t>;

/// Bounded view of bytes: parts outside it are empty or shorter, numbers outside it are not there.
inline Bytes part_of(Bytes bytes, uint64_t begin, uint64_t size) {
  if (begin >= bytes.size()) return {};
  const uint64_t rest = bytes.size() - begin;
  return bytes.subspan(begin, size < rest ? size : rest);
}
inline Bytes from(Bytes bytes, uint64_t begin) {
  return part_of(bytes, begin, UINT64_MAX);
}

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// An unsigned number of `bytes.size()` (8 or fewer) bytes.
inline uint64_t big_endian(Bytes bytes) {
  uint64_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}
inline uint64_t little_endian(Bytes bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | bytes[i - 1];
  return value;
}

}  // namespace sftrun::images
