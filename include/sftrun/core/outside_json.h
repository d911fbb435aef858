#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sftrun/core/json_depth.h"

/// JSON that others have written: servers, programs, models.
namespace sftrun {

/// @return discarded if the text is no JSON, is nested deeper than `max_depth`, or exceeds the limits of
/// `is_modest_json`
inline nlohmann::ordered_json parse_outside_json(std::string_view text, size_t max_depth) {
  using Json = nlohmann::ordered_json;
  if (!is_modest_json(text, max_depth)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// The text that an object has under a key; empty: it has none there, or is no object.
template <class Json>
std::string text_under(const Json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->template get<std::string>()
                                                     : std::string();
}

}  // namespace sftrun
