#include "jinja/string_literal.h"

#include <fmt/format.h>

#include "jinja/error.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

class Unescaper {
 public:
  Unescaper(std::string_view literal, int line) : literal_(literal), line_(line) {}

  std::string run() {
    while (at_ < literal_.size()) {
      const char c = literal_[at_++];
      if (c == '\\') {
        escape();
      } else {
        out_.push_back(c);
      }
    }
    return std::move(out_);
  }

 private:
  void escape() {
    if (at_ >= literal_.size()) fail("\\ at end of string", line_);
    const char c = literal_[at_];
    constexpr std::string_view kSimple = "\\'\"abfnrtv";
    constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kSimple.find(c); simple != std::string_view::npos) {
      out_.push_back(kMeaning[simple]);
      ++at_;
    } else if (c == '\n') {
      ++at_;
    } else if (c >= '0' && c <= '7') {
      octal();
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ++at_;
      hexadecimal(c == 'x' ? 2 : c == 'u' ? 4 : 8, c);
    } else if ((c & 0x80) != 0) {
      non_ascii();
    } else if (c == 'N') {
      fail("\\N escapes are not supported in chat templates", line_);
    } else {
      out_.push_back('\\');  // an unknown escape stands for itself
    }
  }

  void octal() {
    char32_t code = 0;
    for (int i = 0; i < 3 && at_ < literal_.size() && literal_[at_] >= '0' && literal_[at_] <= '7';
         ++i) {
      code = code * 8 + static_cast<char32_t>(literal_[at_++] - '0');
    }
    append_utf8(out_, code);
  }

  void hexadecimal(int num_digits, char kind) {
    char32_t code = 0;
    for (int i = 0; i < num_digits; ++i) {
      const int digit = at_ < literal_.size() ? hex_digit(literal_[at_]) : -1;
      if (digit < 0) fail(fmt::format("truncated \\{} escape", kind), line_);
      code = code * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("illegal Unicode character", line_);
    append_utf8(out_, code);
  }

  /// jinja2 turns the character into a \x or \u escape first, whose backslash the one before it
  /// then escapes.
  void non_ascii() {
    const auto [code, num_bytes] = decode_char_at(literal_, at_);
    const auto number = static_cast<uint32_t>(code);
    out_ += code < 0x100     ? fmt::format("\\x{:02x}", number)
            : code < 0x10000 ? fmt::format("\\u{:04x}", number)
                             : fmt::format("\\U{:08x}", number);
    at_ += num_bytes;
  }

  std::string_view literal_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string unescape_literal(std::string_view literal, int line) {
  return Unescaper(literal, line).run();
}

}  // namespace sftrun::templates::jinja
