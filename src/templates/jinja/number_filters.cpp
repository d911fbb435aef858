#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_ops.h"

namespace sftrun::templates::jinja {
namespace {

Value abs_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("abs", args, {});
  if (value.is_float()) return Value::number(std::fabs(value.as_double()), value.origin());
  if (value.is_long())
    return less(value, Value::integer(0)) ? negate(value).with_origin(value.origin()) : value;
  if (value.is_integral())
    return Value::integer(value.integral() < 0 ? -value.integral() : value.integral(),
                          value.origin());
  fail("bad operand type for abs(): '" + type_name(value) + "'");
}

/// The digits of a number literal without underscores; nullopt if Python rejects them.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_' || text[i + 1] == '_') {
      return std::nullopt;
    }
  }
  return digits;
}

/// Python's int(text, base).
std::optional<Int> parse_int(const TaggedText& text, int base) {
  const TaggedText stripped = strip(text, std::nullopt, Side::kBoth);
  std::string_view bytes = stripped.bytes();
  const bool negative = bytes.starts_with('-');
  if (negative || bytes.starts_with('+')) bytes.remove_prefix(1);
  const auto has_prefix = [&bytes](char kind) {
    return bytes.size() > 2 && bytes[0] == '0' && (bytes[1] | 0x20) == kind;
  };
  if ((base == 16 || base == 0) && has_prefix('x')) bytes.remove_prefix(2), base = 16;
  if ((base == 8 || base == 0) && has_prefix('o')) bytes.remove_prefix(2), base = 8;
  if ((base == 2 || base == 0) && has_prefix('b')) bytes.remove_prefix(2), base = 2;
  if (base == 0) base = 10;
  const auto digits = without_underscores(bytes);
  if (!digits || digits->empty() || base < 2 || base > 36) return std::nullopt;
  Int value = 0;
  for (const char c : *digits) {
    const char low = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'       ? c - '0'
                      : low >= 'a' && low <= 'z' ? low - 'a' + 10
                                                 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value)) fail("integer is too large");
    value = checked_integer(value + digit);
  }
  return negative ? -value : value;
}

/// Python's float(text).
std::optional<double> parse_float(const TaggedText& text) {
  const TaggedText stripped = strip(text, std::nullopt, Side::kBoth);
  std::string_view bytes = stripped.bytes();
  const bool negative = bytes.starts_with('-');
  if (negative || bytes.starts_with('+')) bytes.remove_prefix(1);
  if (bytes.starts_with('-') || bytes.starts_with('+')) return std::nullopt;
  const auto digits = without_underscores(bytes);
  if (!digits || digits->empty()) return std::nullopt;
  double value = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(digits->data(), end, value);
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range)
    value = digits->find("e-") != std::string::npos ? 0.0 : HUGE_VAL;
  if (std::isnan(value) && digits->find('(') != std::string::npos) return std::nullopt;
  return negative ? -value : value;
}

Value truncated(double value) {
  if (!std::isfinite(value) || std::fabs(value) > 1e36) fail("cannot convert float to integer");
  return Value::integer(static_cast<Int>(value));
}

Value int_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("int", args, {"default", "base"});
  const Value otherwise = params.given(0) ? *params[0] : Value::integer(0);
  if (value.is_undefined()) fail(value.undefined().message);
  if (value.is_long()) return value;
  if (value.is_integral()) return Value::integer(value.integral(), value.origin());
  if (value.is_float())
    return std::isfinite(value.as_double()) ? truncated(value.as_double()) : otherwise;
  if (!value.is_string()) return otherwise;
  if (const auto number = parse_int(value.text(), static_cast<int>(params.integer(1, 10))))
    return Value::integer(*number);
  const auto number = parse_float(value.text());  // "42.23" counts as 42
  return number && std::isfinite(*number) ? truncated(*number) : otherwise;
}

Value float_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("float", args, {"default"});
  if (value.is_undefined()) fail(value.undefined().message);
  if (value.is_number()) return Value::number(value.as_double(), value.origin());
  const auto number = value.is_string() ? parse_float(value.text()) : std::nullopt;
  if (number) return Value::number(*number);
  return params.given(0) ? *params[0] : Value::number(0.0);
}

/// Python's round(): to even for ties, judged on the exact decimal value.
double round_to(double value, int precision) {
  if (!std::isfinite(value)) return value;
  if (precision >= 0) return std::stod(fmt::format("{:.{}f}", value, std::min(precision, 400)));
  const double unit = std::pow(10.0, -precision);
  return std::isfinite(unit) ? std::nearbyint(value / unit) * unit : std::copysign(0.0, value);
}

Value round_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("round", args, {"precision", "method"});
  const std::string method = params.given(1) ? params.text(1).bytes() : "common";
  const auto precision = static_cast<int>(std::clamp<Int>(params.integer(0, 0), -400, 400));
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (!value.is_number()) fail("type " + type_name(value) + " doesn't define __round__ method");
  if (method == "common") {
    if (value.is_float()) return Value::number(round_to(value.as_double(), precision));
    if (precision >= 0) return value.is_long() ? value : Value::integer(value.integral());
    return truncated(round_to(value.as_double(), precision));
  }
  const double unit = std::pow(10.0, precision);
  const double scaled = value.as_double() * unit;
  const double rounded = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value::number(rounded / unit);
}

Value filesizeformat(Runtime&, const Value& value, const Args& args) {
  const Params params("filesizeformat", args, {"binary"});
  const bool binary = params.flag(0, false);
  const auto parsed = value.is_number()   ? std::optional(value.as_double())
                      : value.is_string() ? parse_float(value.text())
                                          : std::nullopt;
  if (!parsed) fail("filesizeformat needs a number");
  const double base = binary ? 1024 : 1000;
  if (*parsed == 1) return Value::string("1 Byte");
  if (*parsed < base) return Value::string(fmt::format("{} Bytes", static_cast<int64_t>(*parsed)));
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && *parsed >= unit * base) unit *= base, ++i;
  const std::string prefix = binary ? std::string(1, i == 0 ? 'K' : kPrefixes[i]) + "iB"
                                    : std::string(1, kPrefixes[i]) + "B";
  return Value::string(fmt::format("{:.1f} {}", *parsed / unit, prefix));
}

constexpr NamedFilter kNumberFilters[] = {{"abs", abs_filter},
                                          {"int", int_filter},
                                          {"float", float_filter},
                                          {"round", round_filter},
                                          {"filesizeformat", filesizeformat}};

}  // namespace

Filter find_number_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(kNumberFilters), std::end(kNumberFilters),
                               [name](const auto& f) { return f.name == name; });
  return it == std::end(kNumberFilters) ? nullptr : it->filter;
}

}  // namespace sftrun::templates::jinja
