#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

#include "sftrun/core/utf8.h"

/// Parts of the parser of Python's regular expressions (core/python_syntax.h).
namespace sftrun::pattern {

struct SyntaxProblem {
  std::string text;
};
[[noreturn]] inline void fail(const std::string& text) {
  throw SyntaxProblem{text};
}

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
inline bool is_octal(char c) {
  return c >= '0' && c <= '7';
}
inline bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 0x80;
}

/// The position in a pattern. Its functions throw a SyntaxProblem.
class PatternCursor {
 public:
  /// @param text valid UTF-8, which outlives the cursor
  explicit PatternCursor(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ >= text_.size(); }
  std::string_view rest() const { return text_.substr(at_); }
  bool is_at(std::string_view word) const { return rest().starts_with(word); }
  bool take(std::string_view word) {
    if (!is_at(word)) return false;
    at_ += word.size();
    return true;
  }
  /// @param otherwise the problem if the pattern ends here
  char next(const char* otherwise) {
    if (at_end()) fail(otherwise);
    return text_[at_++];
  }
  DecodedChar next_char() {
    const DecodedChar c = decode_char_at(text_, at_);
    at_ += c.num_bytes;
    return c;
  }
  std::string digits() {
    std::string number;
    while (!at_end() && is_digit(text_[at_])) number += text_[at_++];
    return number;
  }
  void skip(size_t num_bytes) { at_ = std::min(text_.size(), at_ + num_bytes); }
  /// Before the byte that `next` returned.
  void step_back() { --at_; }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace sftrun::pattern
