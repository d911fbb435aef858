#include "found_number.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string>

namespace sftrun::reward {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Reads numbers from left to right.
class NumberScanner {
 public:
  explicit NumberScanner(std::string_view text) : text_(text) {}

  std::optional<double> last() {
    std::optional<double> found;
    for (size_t at = 0; at < text_.size();) {
      const size_t begin = at;
      if (const auto number = number_at(at)) found = sign_before(begin) * *number;
      at = std::max(at, begin + 1);
    }
    return found;
  }

 private:
  char char_at(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  /// @param at of the first character; behind the number if there is one
  std::optional<double> number_at(size_t& at) const {
    const size_t begin = at;
    if (const auto fraction = latex_fraction(at); at > begin) return fraction;
    const bool is_behind_slash = at > 0 && text_[at - 1] == '/';
    const auto over = decimal(at);
    if (!over) return std::nullopt;
    size_t next = at + 1;
    if (is_behind_slash || char_at(at) != '/' || !is_digit(char_at(next))) return over;
    const auto under = decimal(next);
    // 1/2/2024 is a date.
    if (!under || char_at(next) == '/') return over;
    at = next;
    return quotient(*over, *under);
  }

  /// nullopt: division by zero, or beyond a double. The fraction is passed over: neither part is its number.
  static std::optional<double> quotient(double over, double under) {
    if (under == 0 || !std::isfinite(over / under)) return std::nullopt;
    return over / under;
  }

  /// \frac{1}{2}, \dfrac{1}{2}, \tfrac12.   @param at behind the fraction if it is one of two numbers
  std::optional<double> latex_fraction(size_t& at) const {
    for (const std::string_view name : {"\\frac", "\\dfrac", "\\tfrac"}) {
      if (!text_.substr(at).starts_with(name)) continue;
      size_t next = at + name.size();
      const auto over = argument(next);
      const auto under = over ? argument(next) : std::nullopt;
      if (!under) return std::nullopt;
      at = next;
      return quotient(*over, *under);
    }
    return std::nullopt;
  }

  /// A number in braces, or one digit.
  std::optional<double> argument(size_t& at) const {
    if (is_digit(char_at(at))) return text_[at++] - '0';
    if (char_at(at) != '{') return std::nullopt;
    const size_t end = text_.find('}', at);
    if (end == std::string_view::npos) return std::nullopt;
    const auto number = NumberScanner(text_.substr(at + 1, end - at - 1)).last();
    at = end + 1;
    return number;
  }

  /// 1,234.50e3, .5; nullopt also for one beyond a double, which is passed over.
  std::optional<double> decimal(size_t& at) const {
    const bool begins_with_point = char_at(at) == '.' && is_digit(char_at(at + 1));
    if (!is_digit(char_at(at)) && !begins_with_point) return std::nullopt;
    std::string digits;
    size_t next = at;
    while (is_digit(char_at(next)) || is_thousands(next, digits)) {
      if (text_[next] != ',') digits += text_[next];
      ++next;
    }
    if (char_at(next) == '.' && is_digit(char_at(next + 1))) {
      digits += text_[next++];
      while (is_digit(char_at(next))) digits += text_[next++];
    }
    size_t exponent = next + 1;
    if (char_at(exponent) == '+' || char_at(exponent) == '-') ++exponent;
    if (std::tolower(static_cast<unsigned char>(char_at(next))) == 'e' &&
        is_digit(char_at(exponent))) {
      while (next < exponent) digits += text_[next++];
      while (is_digit(char_at(next))) digits += text_[next++];
    }
    const double number = std::strtod(digits.c_str(), nullptr);
    at = next;
    return std::isfinite(number) ? std::optional(number) : std::nullopt;
  }

  /// A comma before exactly three digits, behind at most three, or another such group.
  bool is_thousands(size_t comma, std::string_view digits_before) const {
    if (char_at(comma) != ',' || digits_before.empty()) return false;
    size_t end = comma + 1;
    while (is_digit(char_at(end))) ++end;
    const bool is_first = text_.substr(0, comma).find_last_of(',') == std::string_view::npos ||
                          comma - text_.substr(0, comma).find_last_of(',') != 4;
    return end == comma + 4 && (!is_first || digits_before.size() <= 3);
  }

  /// -1 for a minus that belongs to the number at `begin`, also before a currency: -$5.
  int sign_before(size_t begin) const {
    size_t at = begin;
    if (at > 0 && text_[at - 1] == '$') --at;
    if (at > 0 && text_[at - 1] == '\\' && at < begin) --at;  // \$
    constexpr std::string_view kMinus = "\xE2\x88\x92";       // U+2212
    size_t minus = std::string_view::npos;
    if (at > 0 && text_[at - 1] == '-') minus = at - 1;
    if (at >= kMinus.size() && text_.substr(at - kMinus.size(), kMinus.size()) == kMinus)
      minus = at - kMinus.size();
    if (minus == std::string_view::npos) return 1;
    if (minus == 0) return -1;
    const auto before = static_cast<unsigned char>(text_[minus - 1]);
    const bool is_between = std::isalnum(before) != 0 || before == ')' || before == '}' ||
                            before == '%' || before >= 0x80;
    return is_between ? 1 : -1;
  }

  std::string_view text_;
};

/// What stands in the last \boxed{…} with balanced braces; nullopt: there is none.
std::optional<std::string_view> last_boxed(std::string_view text) {
  const size_t boxed = text.rfind("\\boxed{"), fbox = text.rfind("\\fbox{");
  if (boxed == std::string_view::npos && fbox == std::string_view::npos) return std::nullopt;
  const bool is_boxed =
      fbox == std::string_view::npos || (boxed != std::string_view::npos && boxed > fbox);
  const size_t begin = is_boxed ? boxed + 7 : fbox + 6;
  int depth = 1;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) return text.substr(begin, at - begin);
  }
  return std::nullopt;
}

std::optional<std::string_view> behind_hashes(std::string_view text) {
  const size_t at = text.rfind("####");
  return at == std::string_view::npos ? std::nullopt : std::optional(text.substr(at + 4));
}

}  // namespace

std::optional<double> find_number(std::string_view text, NumberPlace place) {
  const bool any = place == NumberPlace::kAuto;
  std::optional<double> number;
  if (const auto boxed = last_boxed(text); boxed && (any || place == NumberPlace::kBoxed))
    number = NumberScanner(*boxed).last();
  if (const auto behind = behind_hashes(text);
      !number && behind && (any || place == NumberPlace::kHashes))
    number = NumberScanner(*behind).last();
  if (!number && (any || place == NumberPlace::kLast)) number = NumberScanner(text).last();
  return number;
}

}  // namespace sftrun::reward
