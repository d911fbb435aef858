#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// UTF-8: checking, decoding and encoding (table 3-7 of the Unicode standard).
namespace sftrun {

struct DecodedChar {
  char32_t code = 0;
  uint32_t num_bytes = 1;
};

/// Whether a byte is the second, third or fourth of a character.
inline bool is_continuation_byte(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

/// First code point of valid, non-empty UTF-8.
inline DecodedChar decode_char(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 31) << 6 | (byte(1) & 63), 2};
  if (lead < 0xF0) return {(lead & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), 3};
  return {(lead & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), 4};
}

/// Code point at `at` of any bytes. A byte that does not begin a valid character is returned as a
/// code point of its own. @param at below text.size()
DecodedChar decode_char_at(std::string_view text, size_t at);

/// Last code point of valid, non-empty UTF-8.
DecodedChar decode_last_char(std::string_view text);

void append_utf8(std::string& out, char32_t code);

/// Position of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view bytes);

inline bool is_valid_utf8(std::string_view bytes) {
  return find_invalid_utf8(bytes) == std::string_view::npos;
}

/// The longest beginning of at most `max_bytes` bytes that does not end inside a character.
std::string_view utf8_prefix(std::string_view text, size_t max_bytes);

/// Bytes as text: each maximal prefix of an invalid sequence becomes one U+FFFD, like Rust's
/// from_utf8_lossy.
std::string utf8_lossy(std::string_view bytes);

/// The characters of bytes that arrive in pieces, as `utf8_lossy` divides the whole.
class CharacterStream {
 public:
  void add(std::string_view bytes);
  /// Characters so far, an incomplete one at the end among them.
  size_t num_chars() const { return num_chars_; }
  /// Whether `next` continues the incomplete character at the end.
  bool is_continued_by(std::string_view next) const;
  /// Bytes of the incomplete character at the end.
  size_t num_open_bytes() const { return open_.size(); }

 private:
  std::string open_;
  size_t num_chars_ = 0;
};

}  // namespace sftrun
