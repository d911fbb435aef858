#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "jinja/string_literal.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
         (c & 0x80) != 0;
}

/// \r\n and \r become \n, and one newline at the end is removed, as with
/// keep_trailing_newline=False.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool starts_with(std::string_view what, size_t at) const {
    return std::string_view(source_).substr(at, what.size()) == what;
  }
  bool starts_with(std::string_view what) const { return starts_with(what, at_); }
  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const auto [code, num_bytes] = decode_char_at(source_, at);
      if (!unicode::is_space(code)) break;
      at += num_bytes;
    }
    return at;
  }
  void advance_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > at_) line_starting_ = source_[end - 1] == '\n';
    at_ = end;
  }
  void push(TokenType type, std::string text) {
    Token token;
    token.type = type;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  /// Text up to the next tag, trimmed according to the tag's sign and the environment.
  void push_data(size_t end, char sign, bool is_variable) {
    std::string_view data = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      while (!data.empty()) {
        const size_t last = unicode::previous(data, data.size());
        if (!unicode::is_space(decode_char_at(data, last).code)) break;
        data = data.substr(0, last);
      }
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = data.rfind('\n') + 1;  // 0 when there is none
      const bool at_line_start = line_start > 0 || line_starting_;
      if (at_line_start && skip_space(at_ + line_start) >= end) data = data.substr(0, line_start);
    }
    if (!data.empty()) push(TokenType::kData, std::string(data));
  }

  void root() {
    size_t tag = source_.find('{', at_);
    while (tag != std::string::npos && !starts_with("{%", tag) && !starts_with("{{", tag) &&
           !starts_with("{#", tag)) {
      tag = source_.find('{', tag + 1);
    }
    if (tag == std::string::npos) {
      push(TokenType::kData, source_.substr(at_));
      return advance_to(source_.size());
    }
    const char kind = source_[tag + 1];
    if (kind == '%') {
      if (const size_t body = raw_body(tag); body != std::string::npos) return raw(tag, body);
    }
    const char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+')
            ? source_[tag + 2]
            : ' ';
    push_data(tag, sign, kind == '{');
    advance_to(tag + (sign == ' ' ? 2 : 3));
    if (kind == '#') return comment();
    push(kind == '%' ? TokenType::kBlockBegin : TokenType::kVariableBegin, "");
    expression(kind == '{');
  }

  /// Where the text after a `{% raw %}` at `tag` begins, or npos if that is another tag.
  size_t raw_body(size_t tag) const {
    size_t at = tag + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = skip_space(at);
    if (!starts_with("raw", at)) return std::string::npos;
    at = skip_space(at + 3);
    if (starts_with("-%}", at)) return skip_space(at + 3);
    return starts_with("%}", at) ? at + 2 : std::string::npos;
  }

  void raw(size_t tag, size_t body) {
    push_data(tag, source_[tag + 2], false);
    advance_to(body);
    for (size_t end = source_.find("{%", at_); end != std::string::npos;
         end = source_.find("{%", end + 1)) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
      size_t at = skip_space(end + (sign == '-' || sign == '+' ? 3 : 2));
      if (!starts_with("endraw", at)) continue;
      at = skip_space(at + 6);
      const size_t after = block_end(at);
      if (after == std::string::npos) continue;
      push_data(end, sign, false);
      return advance_to(after);
    }
    fail("Missing end of raw directive", line_);
  }

  void comment() {
    for (size_t at = at_; at < source_.size(); ++at) {
      size_t end = std::string::npos;
      if (starts_with("+#}", at)) end = at + 3;
      if (starts_with("-#}", at)) end = skip_space(at + 3);
      if (starts_with("#}", at)) end = at + 2 + (starts_with("\n", at + 2) ? 1 : 0);
      if (end != std::string::npos) return advance_to(end);
    }
    fail("Missing end of comment tag", line_);
  }

  /// The end of a `%}`, `-%}` or `+%}` at `at`, including white space that it removes, or npos.
  size_t block_end(size_t at) const {
    if (starts_with("+%}", at)) return at + 3;
    if (starts_with("-%}", at)) return skip_space(at + 3);
    if (starts_with("%}", at)) return at + 2 + (starts_with("\n", at + 2) ? 1 : 0);
    return std::string::npos;
  }
  size_t variable_end(size_t at) const {
    if (starts_with("-}}", at)) return skip_space(at + 3);
    return starts_with("}}", at) ? at + 2 : std::string::npos;
  }

  void expression(bool is_variable) {
    std::vector<char> open;
    while (at_ < source_.size()) {
      const size_t end = is_variable ? variable_end(at_) : block_end(at_);
      if (open.empty() && end != std::string::npos) {
        push(is_variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "");
        return advance_to(end);
      }
      if (const size_t after = skip_space(at_); after != at_) {
        advance_to(after);
        continue;
      }
      const char c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name_byte(c)) {
        name();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operation(open);
      }
    }
  }

  void name() {
    size_t end = at_;
    while (end < source_.size() && is_name_byte(source_[end])) ++end;
    push(TokenType::kName, source_.substr(at_, end - at_));
    advance_to(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("unexpected char '" + std::string(1, quote) + "'", line_);
    push(TokenType::kString,
         unescape_literal(std::string_view(source_).substr(at_ + 1, end - at_ - 1), line_));
    advance_to(end + 1);
  }

  /// The end of digits, single underscores between them allowed.
  size_t digits_end(size_t at, const char* alphabet = "0123456789") const {
    const std::string_view allowed(alphabet);
    const auto is_allowed = [&](size_t i) {
      return i < source_.size() && allowed.find(source_[i]) != allowed.npos;
    };
    if (!is_allowed(at)) return at;
    while (is_allowed(at) || (at < source_.size() && source_[at] == '_' && is_allowed(at + 1)))
      ++at;
    return at;
  }

  void number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    const size_t whole = digits_end(at_);
    size_t end = whole;
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.') {
        const size_t fraction = digits_end(end + 1);
        if (fraction > end + 1) end = fraction;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t sign = end + 1;
        if (sign < source_.size() && (source_[sign] == '+' || source_[sign] == '-')) ++sign;
        const size_t exponent = digits_end(sign);
        if (exponent > sign) end = exponent;
      }
    }
    if (end != whole) return push_float(end);
    push_integer(whole);
  }

  std::string without_underscores(size_t end) const {
    std::string digits = source_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    return digits;
  }

  void push_float(size_t end) {
    push(TokenType::kFloat, "");
    tokens_.back().number = std::strtod(without_underscores(end).c_str(), nullptr);
    advance_to(end);
  }

  void push_integer(size_t end) {
    int base = 10;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char kind = static_cast<char>(source_[at_ + 1] | 0x20);
      const char* alphabet = kind == 'x'   ? "0123456789abcdefABCDEF"
                             : kind == 'o' ? "01234567"
                             : kind == 'b' ? "01"
                                           : "";
      const size_t prefixed = digits_end(at_ + 2, alphabet);
      if (prefixed > at_ + 2) {
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
        end = prefixed;
      } else {
        end = digits_end(at_, "0");  // "01" is two numbers, as in jinja2
      }
    }
    std::string digits = without_underscores(end);
    if (base != 10) digits = digits.substr(2);
    push(TokenType::kInteger, "");
    tokens_.back().integer = parse_integer(digits, base);
    advance_to(end);
  }

  Int parse_integer(const std::string& digits, int base) const {
    Int value = 0;
    for (const char c : digits) {
      const int digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit}, &value)) {
        fail("integer is too large", line_);
      }
    }
    return value;
  }

  void operation(std::vector<char>& open) {
    constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto op = std::find_if(kOperators.begin(), kOperators.end(),
                                 [this](auto o) { return starts_with(o); });
    if (op == kOperators.end())
      fail("unexpected char '" + std::string(1, source_[at_]) + "'", line_);
    const char c = (*op)[0];
    if (c == '{' || c == '(' || c == '[') {
      open.push_back(c == '{' ? '}' : c == '(' ? ')' : ']');
    } else if (c == '}' || c == ')' || c == ']') {
      if (open.empty()) fail("unexpected '" + std::string(*op) + "'", line_);
      if (open.back() != c)
        fail("unexpected '" + std::string(*op) + "', expected '" + open.back() + "'", line_);
      open.pop_back();
    }
    push(TokenType::kOperator, std::string(*op));
    advance_to(at_ + op->size());
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "template data / text";
    case TokenType::kVariableBegin:
      return "begin of print statement";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kBlockBegin:
      return "begin of statement block";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kString:
      return "string";
    case TokenType::kInteger:
      return "integer";
    case TokenType::kFloat:
      return "float";
    case TokenType::kEnd:
      return "end of template";
    case TokenType::kName:
    case TokenType::kOperator:
      return token.text;
  }
  return {};
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace sftrun::templates::jinja
