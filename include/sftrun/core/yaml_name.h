#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sftrun/core/strings.h"

namespace sftrun {

/// A name as it may stand in a YAML list or map in one line: in double quotes if YAML could read it
/// as something else (commas, quotes, spaces, `yes`, numbers).
inline std::string yaml_name(const std::string& name) {
  constexpr std::array<std::string_view, 9> kOther = {"true", "false", "null", "yes", "no",
                                                      "on",   "off",   "y",    "n"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) {
    const bool is_beyond_ascii = static_cast<unsigned char>(c) >= 0x80;
    return is_letter(c) || (c >= '0' && c <= '9') || is_beyond_ascii ||
           std::string_view("_-./").find(c) != std::string_view::npos;
  };
  const bool is_word = !name.empty() && (is_letter(name[0]) || name[0] == '_') &&
                       std::all_of(name.begin(), name.end(), is_plain) &&
                       std::find(kOther.begin(), kOther.end(), ascii_lower(name)) == kOther.end();
  if (is_word) return name;
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sftrun
