#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "sftrun/core/error.h"

namespace sftrun::weights {

/// Reads little-endian values with bounds checks. A read past the end is a DataError that says what
/// was being read; nothing is allocated before its size is known to fit.
class ByteCursor {
 public:
  ByteCursor(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  template <typename T>
  T read(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  /// A 64-bit length, followed by that many bytes.
  std::string_view read_text(const char* what) {
    const auto length = read<uint64_t>(what);
    const std::span<const std::byte> text = take(length, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  std::span<const std::byte> take(uint64_t num_bytes, const char* what) {
    if (num_bytes > remaining()) {
      throw DataError(
          fmt::format("the file ends within {}: expected {} bytes at offset {}, only {} left", what,
                      num_bytes, offset_, remaining()),
          where_, "the file is truncated or corrupt: download or copy it again");
    }
    const std::span<const std::byte> taken = bytes_.subspan(offset_, num_bytes);
    offset_ += num_bytes;
    return taken;
  }
  std::span<const std::byte> rest() const { return bytes_.subspan(offset_); }
  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  uint64_t offset_ = 0;
};

}  // namespace sftrun::weights
