#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

struct Sequence {
  uint32_t num_bytes;  ///< of the character, or of the maximal ill-formed prefix
  bool valid;
};

/// Classifies the sequence at the front of `bytes` (table 3-7 of the Unicode standard).
Sequence scan_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint32_t i = 1; i < length; ++i) {
    if (i >= bytes.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

}  // namespace

DecodedChar decode_char_at(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80 || !scan_sequence(text.substr(at)).valid) return {lead, 1};
  return decode_char(text.data() + at);
}

DecodedChar decode_last_char(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && is_continuation_byte(text[begin])) --begin;
  return decode_char(text.data() + begin);
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 63));
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

size_t find_invalid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (static_cast<uint8_t>(bytes[i]) < 0x80) {
      ++i;
      continue;
    }
    const Sequence sequence = scan_sequence(bytes.substr(i));
    if (!sequence.valid) return i;
    i += sequence.num_bytes;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  if (find_invalid_utf8(bytes) == std::string_view::npos) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size() + 8);
  while (!bytes.empty()) {
    const Sequence sequence = scan_sequence(bytes);
    if (sequence.valid) {
      out += bytes.substr(0, sequence.num_bytes);
    } else {
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(sequence.num_bytes);
  }
  return out;
}

void CharacterStream::add(std::string_view bytes) {
  for (const char byte : bytes) {
    if (!is_continued_by(std::string_view(&byte, 1))) {
      open_.clear();
      ++num_chars_;
    }
    open_ += byte;
    if (is_valid_utf8(open_)) open_.clear();
  }
}

bool CharacterStream::is_continued_by(std::string_view next) const {
  if (open_.empty() || next.empty()) return false;
  const std::string more = open_ + next.front();
  return scan_sequence(more).num_bytes == more.size();
}

std::string_view utf8_prefix(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && is_continuation_byte(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace sftrun
