#include "sftrun/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

std::string lowered(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

/// from_chars does not accept a leading plus sign, as in +4.
std::string_view without_plus(std::string_view text) {
  const bool signed_number = text.size() > 1 && text[0] == '+' && text[1] != '-';
  return signed_number ? text.substr(1) : text;
}

template <class Integer>
std::optional<Integer> whole_of(std::string_view text) {
  const std::string_view digits = without_plus(text);
  Integer integer = 0;
  const auto [end, failure] =
      std::from_chars(digits.data(), digits.data() + digits.size(), integer);
  const bool is_whole = failure == std::errc() && end == digits.data() + digits.size();
  return is_whole ? std::optional(integer) : std::nullopt;
}

nlohmann::ordered_json scalar_to_json(const Value& value) {
  if (value.quoted) return value.text;
  if (const auto truth = parse_bool(value.text); truth && value.text.size() > 1) return *truth;
  if (const auto integer = whole_of<int64_t>(value.text)) return *integer;
  if (const auto integer = whole_of<uint64_t>(value.text)) return *integer;
  if (const auto number = parse_double(value.text)) return *number;
  return value.text;
}

bool is_long_integer(std::string_view text) {
  const std::string_view digits = without_plus(text);
  const bool is_whole = digits.find_first_not_of("0123456789", digits.starts_with('-') ? 1 : 0) ==
                            std::string_view::npos &&
                        digits.size() > 1;
  return is_whole && !whole_of<int64_t>(text) && !whole_of<uint64_t>(text);
}

/// As YAML writes them: inf and nan are texts.
bool is_not_finite(std::string_view text) {
  const std::string lower = lowered(text);
  return lower == ".nan" || lower == ".inf" || lower == "+.inf" || lower == "-.inf";
}

bool is_out_of_range(std::string_view text) {
  const std::string_view digits = without_plus(text);
  double number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return failure == std::errc::result_out_of_range && end == digits.data() + digits.size();
}

}  // namespace

Value Value::scalar(std::string text, bool quoted) {
  Value value;
  value.kind = Kind::kScalar;
  value.text = std::move(text);
  value.quoted = quoted;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string lower = lowered(text);
  constexpr std::array<std::string_view, 4> kTrue = {"true", "yes", "on", "y"};
  constexpr std::array<std::string_view, 4> kFalse = {"false", "no", "off", "n"};
  if (std::find(kTrue.begin(), kTrue.end(), lower) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), lower) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<double> parse_double(std::string_view text) {
  const std::string_view digits = without_plus(text);
  double number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (!std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<int64_t> parse_int(std::string_view text) {
  const std::string_view digits = without_plus(text);
  int64_t integer = 0;
  const auto [end, failure] =
      std::from_chars(digits.data(), digits.data() + digits.size(), integer);
  if (failure == std::errc() && end == digits.data() + digits.size()) return integer;
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53: beyond it a double skips integers
  const auto number = parse_double(text);
  if (!number || *number != std::floor(*number) || std::abs(*number) > kLargestExact) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

std::string number_beyond_json(const Value& value) {
  for (const Value& item : value.items) {
    if (std::string found = number_beyond_json(item); !found.empty()) return found;
  }
  if (value.kind != Value::Kind::kScalar || value.quoted) return {};
  const char* reason = is_long_integer(value.text) ? "has more than 64 bits"
                       : is_not_finite(value.text) ? "is not finite"
                       : is_out_of_range(value.text)
                           ? "is beyond the range of floating-point numbers"
                           : nullptr;
  return reason == nullptr ? ""
                           : fmt::format("the number {}, which {}", excerpt(value.text), reason);
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "empty";
    case Value::Kind::kScalar:
      return fmt::format("`{}`", excerpt(value.text));
    case Value::Kind::kList:
      return "a list";
    case Value::Kind::kMap:
      return "a map";
  }
  return {};
}

nlohmann::ordered_json to_json(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kScalar:
      return scalar_to_json(value);
    case Value::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Value& item : value.items) list.push_back(to_json(item));
      return list;
    }
    case Value::Kind::kMap: {
      auto object = nlohmann::ordered_json::object();
      // The reader has refused duplicate keys; `object[key]` would look for the key among all others.
      auto& pairs = object.get_ref<nlohmann::ordered_json::object_t&>();
      for (size_t i = 0; i < value.items.size(); ++i) {
        pairs.emplace_back(value.keys[i].text, to_json(value.items[i]));
      }
      return object;
    }
  }
  return nullptr;
}

Value value_from_json(const nlohmann::ordered_json& json) {
  if (json.is_null()) return {};
  if (json.is_string()) return Value::scalar(json.get<std::string>(), true);
  Value value;
  if (json.is_array()) {
    value.kind = Value::Kind::kList;
    for (const auto& item : json) value.items.push_back(value_from_json(item));
    return value;
  }
  if (json.is_object()) {
    value.kind = Value::Kind::kMap;
    for (const auto& [key, item] : json.items()) {
      value.keys.push_back({key, {}});
      value.items.push_back(value_from_json(item));
    }
    return value;
  }
  return Value::scalar(json.dump());
}

}  // namespace sftrun::config
