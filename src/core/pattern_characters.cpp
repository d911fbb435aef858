#include "pattern_characters.h"

#include <fmt/format.h>

#include <optional>

namespace sftrun::pattern {
namespace {

uint32_t read_hex(PatternCursor& text, size_t num_digits) {
  uint32_t code = 0;
  for (size_t i = 0; i < num_digits; ++i) {
    const char c = text.next("incomplete escape");
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) fail("incomplete escape");
    code = code * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return code;
}

/// \x41, \u0041, \U00000041. Oniguruma takes \xe9 for a byte.
uint32_t read_code(PatternCursor& text, char kind) {
  const uint32_t code = read_hex(text, kind == 'x' ? 2 : kind == 'u' ? 4 : 8);
  constexpr uint32_t kMaxAscii = 0x7f, kLastCode = 0x10ffff;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (is_surrogate || code > kLastCode || (kind == 'x' && code > kMaxAscii))
    fail(fmt::format("the escape \\{}: write the character itself", kind));
  return code;
}

/// A character of a class; nullopt: \d and the like.
std::optional<uint32_t> read_class_item(PatternCursor& text) {
  if (text.at_end()) fail("unterminated character set");
  if (text.is_at("[")) fail("`[` in a class of characters: write \\[");
  if (text.is_at("&&")) fail("`&&` in a class of characters: write \\&");
  const uint32_t code = text.next_char().code;
  if (code != '\\') return code;
  const char escaped = text.next("unterminated character set");
  if (std::string_view("dDsSwW").find(escaped) != std::string_view::npos) return std::nullopt;
  if (escaped == 'b') return '\b';
  if (!is_digit(escaped)) return read_plain_escape(text, escaped);
  if (!is_octal(escaped)) fail(fmt::format("bad escape \\{}", escaped));
  text.step_back();
  return read_octal(text);
}

}  // namespace

uint32_t read_octal(PatternCursor& text) {
  uint32_t code = 0;
  for (int i = 0; i < 3 && !text.at_end() && is_octal(text.rest().front()); ++i)
    code = code * 8 + static_cast<uint32_t>(text.next("") - '0');
  if (code > 0x7f) fail("an octal escape: write the character itself");
  return code;
}

uint32_t read_plain_escape(PatternCursor& text, char c) {
  if (c == 'x' || c == 'u' || c == 'U') return read_code(text, c);
  constexpr std::string_view kLetters = "afnrtv", kMeant = "\a\f\n\r\t\v";
  if (const size_t at = kLetters.find(c); at != std::string_view::npos)
    return static_cast<uint32_t>(kMeant[at]);
  if (is_letter(c)) fail(fmt::format("bad escape \\{}", c));
  text.step_back();  // it may be the first byte of several
  return text.next_char().code;
}

void read_class(PatternCursor& text) {
  text.take("^");
  bool is_first = true;
  while (is_first || !text.take("]")) {
    is_first = false;
    const auto low = read_class_item(text);
    if (!text.take("-") || text.is_at("]")) continue;
    const auto high = read_class_item(text);
    if (!low || !high || *high < *low) fail("bad character range");
  }
}

}  // namespace sftrun::pattern
