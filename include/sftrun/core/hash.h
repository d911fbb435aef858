#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sftrun {

/// A streaming 128-bit fingerprint to detect changes, for example of a data set; not for security.
/// Two lanes of FNV-1a over 64-bit words with a final mix; the same on every platform
/// (little-endian input).
class Fingerprint {
 public:
  Fingerprint& add(const void* data, size_t num_bytes);
  Fingerprint& add(
      std::string_view text);  ///< length-prefixed, so ("a","b") differs from ("ab","")
  Fingerprint& add(uint64_t value);
  std::string hex() const;  ///< 32 hexadecimal digits

 private:
  uint64_t a_ = 0xcbf29ce484222325ULL, b_ = 0x9ae16a3b2f90404fULL, length_ = 0;
};

}  // namespace sftrun
