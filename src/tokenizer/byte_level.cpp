#include "byte_level.h"

#include <array>
#include <cstdint>

#include "sftrun/core/utf8.h"
#include "text_edit.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

constexpr int kNumChars = 0x144;

struct Maps {
  std::array<uint16_t, 256> char_of;
  std::array<int16_t, kNumChars> byte_of;  ///< -1: no byte
};

/// Printable Latin-1 bytes are written as themselves, the other bytes as U+0100 and up, in order.
constexpr Maps make_maps() {
  Maps maps{};
  for (auto& byte : maps.byte_of) byte = -1;
  uint16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    maps.char_of[b] = printable ? static_cast<uint16_t>(b) : next++;
    maps.byte_of[maps.char_of[b]] = static_cast<int16_t>(b);
  }
  return maps;
}
constexpr Maps kMaps = make_maps();

}  // namespace

char32_t byte_to_char(unsigned char byte) {
  return kMaps.char_of[byte];
}

std::string bytes_to_visible(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, byte_to_char(static_cast<unsigned char>(byte)));
  return out;
}

NormalizedText bytes_to_visible(std::string_view bytes, bool with_sources) {
  if (!with_sources) return {bytes_to_visible(bytes), {}};
  TextEdit edit(bytes, true);
  for (size_t i = 0; i < bytes.size(); ++i) {
    append_utf8(edit.text(), byte_to_char(static_cast<unsigned char>(bytes[i])));
    edit.mark(i, i + 1);
  }
  return edit.take();
}

std::optional<std::string> visible_to_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_char(text.data() + i);
    if (c.code >= kNumChars || kMaps.byte_of[c.code] < 0) return std::nullopt;
    out += static_cast<char>(kMaps.byte_of[c.code]);
    i += c.num_bytes;
  }
  return out;
}

}  // namespace sftrun::tokenizer
