#include "sftrun/config/yaml_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/value.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// Whether a plain text is not a number, a date, a boolean, null or YAML syntax.
bool is_plain(const std::string& text) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/",
                             kOthers = "0123456789.+-";
  const auto is_letter = [&](char c) { return kLetters.find(c) != std::string_view::npos; };
  const auto is_plain_char = [&](char c) {
    return is_letter(c) || kOthers.find(c) != std::string_view::npos;
  };
  return !text.empty() && is_letter(text.front()) &&
         std::all_of(text.begin(), text.end(), is_plain_char) && ascii_lower(text) != "null" &&
         !parse_bool(text) && !parse_double(text);
}

/// Double-quoted text in YAML has JSON's escapes.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Shortest text that is read as the same number. YAML 1.1 needs the point in 2.0e-05.
/// @param keeps_kind whether 1.0 shall not become the integer 1
std::string number_text(double number, bool keeps_kind) {
  std::string text = fmt::format("{}", number);
  const size_t exponent = text.find('e');
  const bool has_point = text.find('.') != std::string::npos;
  if (exponent != std::string::npos && !has_point) text.insert(exponent, ".0");
  if (exponent == std::string::npos && !has_point && keeps_kind) text += ".0";
  return text;
}

std::string item_text(const nlohmann::ordered_json& value) {
  if (value.is_number_float()) return number_text(value.get<double>(), /*keeps_kind=*/true);
  return yaml_text(value);
}

}  // namespace

std::string yaml_text(const nlohmann::ordered_json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return is_plain(text) ? text : quoted(text);
  }
  if (value.is_number_float()) return number_text(value.get<double>(), /*keeps_kind=*/false);
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += quoted(key) + ": ";
    text += item_text(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

}  // namespace sftrun::config
