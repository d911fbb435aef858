#include "jinja/format_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/print.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

constexpr int kMaxPrecision = 1000;

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

int parse_count(std::string_view text, size_t& at) {
  int value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > (1 << 26)) fail("a format's width is too large");
  }
  return value;
}

std::string in_base(Int value, int base, bool upper) {
  if (value == 0) return "0";
  const std::string_view alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  for (; value != 0; value /= base) digits.push_back(alphabet[static_cast<size_t>(value % base)]);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_digits(const FormatSpec& spec, double value) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  if (precision > kMaxPrecision) fail("a format's precision is too large");
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  std::string digits;
  if (!std::isfinite(value)) {
    digits = std::isnan(value) ? "nan" : "inf";
  } else if (spec.type == 'e' || spec.type == 'E') {
    digits = fmt::format("{:.{}e}", value, precision);
  } else if (spec.type == 'f' || spec.type == 'F' || spec.type == '%') {
    digits = fmt::format("{:.{}f}", spec.type == '%' ? value * 100 : value, precision);
  } else if (spec.type == 0 && spec.precision < 0) {
    digits = print_float(value);
  } else {
    digits = spec.alternate ? fmt::format("{:#.{}g}", value, std::max(precision, 1))
                            : fmt::format("{:.{}g}", value, std::max(precision, 1));
    if (spec.type == 0 && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  }
  if (upper)
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return spec.type == '%' ? digits + "%" : digits;
}

std::string grouped(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + digits.substr(whole);
}

/// Digits of the absolute value.
std::string integer_digits(const FormatSpec& spec, const Value& value) {
  const bool in_decimal = std::string_view("boxX").find(spec.type) == std::string_view::npos;
  if (value.is_long() && in_decimal) {
    const std::string& text = value.long_integer();
    return text.substr(text[0] == '-' ? 1 : 0);
  }
  const Int magnitude = value.integral() < 0 ? -value.integral() : value.integral();
  switch (spec.type) {
    case 'b':
      return (spec.alternate ? "0b" : "") + in_base(magnitude, 2, false);
    case 'o':
      return (spec.alternate ? "0o" : "") + in_base(magnitude, 8, false);
    case 'x':
      return (spec.alternate ? "0x" : "") + in_base(magnitude, 16, false);
    case 'X':
      return (spec.alternate ? "0X" : "") + in_base(magnitude, 16, true);
    default:
      return print_integer(magnitude);
  }
}

}  // namespace

FormatSpec parse_format_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const size_t first = text.empty() ? 0 : unicode::sequence_length(text, 0);
  if (first < text.size() && is_align(text[first])) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    at = first + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    at = 1;
  }
  const auto take = [&](std::string_view among) {
    return at < text.size() && among.find(text[at]) != std::string_view::npos ? text[at++]
                                                                              : char{0};
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = parse_count(text, at);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    const size_t digits = at;
    spec.precision = parse_count(text, at);
    if (at == digits) fail("Format specifier missing precision");
  }
  spec.type = take("bcdeEfFgGnosxX%");
  if (at != text.size()) fail("Invalid format specifier");
  return spec;
}

std::string format_number(Runtime& runtime, const FormatSpec& spec, const Value& value) {
  constexpr std::string_view kFloatTypes = "eEfFgG%";
  const bool as_float =
      value.is_float() || (spec.type != 0 && kFloatTypes.find(spec.type) != std::string_view::npos);
  bool negative = false;
  std::string digits;
  if (as_float) {
    if (spec.type != 0 && spec.type != 'n' &&
        kFloatTypes.find(spec.type) == std::string_view::npos) {
      fail(fmt::format("Unknown format code '{}' for object of type 'float'", spec.type));
    }
    negative = std::signbit(value.as_double()) && !std::isnan(value.as_double());
    digits = float_digits(spec, std::fabs(value.as_double()));
  } else {
    if (spec.type == 's') fail("Unknown format code 's' for object of type 'int'");
    negative = less(value, Value::integer(0));
    digits = integer_digits(spec, value);
    const auto wanted = static_cast<size_t>(std::clamp(spec.precision, 0, kMaxPrecision));
    if (digits.size() < wanted) digits.insert(0, wanted - digits.size(), '0');
  }
  if (spec.grouping != 0) digits = grouped(digits, spec.grouping);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.align == '=') {
    const auto width = static_cast<size_t>(spec.width);
    runtime.charge(width);
    const size_t prefix = digits.size() > 1 && digits[0] == '0' && spec.alternate ? 2 : 0;
    std::string padded = sign + digits.substr(0, prefix);
    for (size_t size = padded.size() + digits.size() - prefix; size < width; ++size)
      padded += spec.fill;
    return padded + digits.substr(prefix);
  }
  return pad(runtime, spec, TaggedText(sign + digits), '>').bytes();
}

TaggedText pad(Runtime& runtime, const FormatSpec& spec, const TaggedText& text, char align) {
  const auto length = static_cast<int64_t>(unicode::length(text.bytes()));
  const int64_t missing = spec.width - length;
  if (missing <= 0) return text;
  runtime.charge(static_cast<size_t>(missing) * spec.fill.size());
  const char side = spec.align != 0 ? spec.align : align;
  const int64_t left = side == '<' ? 0 : side == '^' ? missing / 2 : missing;
  TaggedText out;
  for (int64_t i = 0; i < left; ++i) out.append(spec.fill, kFromTemplate);
  out.append(text);
  for (int64_t i = left; i < missing; ++i) out.append(spec.fill, kFromTemplate);
  return out;
}

}  // namespace sftrun::templates::jinja
