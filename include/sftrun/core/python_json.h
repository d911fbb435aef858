#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/json_depth.h"

namespace sftrun {

/// JSON as Python's json module reads and writes it. Beside JSON it has the numbers NaN, Infinity and -Infinity, and a number beyond
/// double's range is infinite. The parser of nlohmann::json has none of these: here they stand in the text as strings
/// that no file holds by accident, and become numbers again while the parser makes values.
class PythonJson {
 public:
  explicit PythonJson(std::string_view text);

  /// For the parser.
  std::string_view text() const { return changed_.empty() ? original_ : changed_; }
  bool has_stand_ins() const { return !changed_.empty(); }
  /// The byte of the file, from 1, for one of `text()`.
  size_t byte_in_file(size_t byte) const;
  /// Changes a string that stands for a number, as the callback of a parser sees it.
  template <class Json>
  static void restore(Json& value) {
    if (!value.is_string()) return;
    if (const double* number = number_for(value.template get_ref<const std::string&>()))
      value = *number;
  }

 private:
  /// nullptr: a string of the file
  static const double* number_for(const std::string& text);
  void replace(size_t begin, size_t end, std::string_view stand_in);

  struct Shift {
    size_t begin, added;  ///< bytes of the changed text from `begin` on are `added` too far
  };
  std::string_view original_;
  std::string changed_;
  size_t copied_ = 0;
  std::vector<Shift> shifts_;
};

/// Reads a file's text.
/// @return discarded if it is invalid, has a NUL byte, is nested deeper than `max_depth`, or exceeds the limits of `is_modest_json`
template <class Json = nlohmann::json>
Json parse_python_json(std::string_view text, size_t max_depth = 64) {
  constexpr KeyOrder kOrder =
      std::is_same_v<Json, nlohmann::json> ? KeyOrder::kSorted : KeyOrder::kKept;
  if (text.find('\0') != std::string_view::npos || !is_modest_json(text, max_depth, kOrder))
    return Json(Json::value_t::discarded);
  const PythonJson python(text);
  if (!python.has_stand_ins()) return Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto restore = [](int, typename Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::value) PythonJson::restore(value);
    return true;
  };
  return Json::parse(python.text(), restore, /*allow_exceptions=*/false);
}

/// Writes a value as json.dumps does: NaN, Infinity and -Infinity where nlohmann::json writes null.
/// @param indent as of nlohmann's dump: -1 for one line
std::string dump_python_json(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace sftrun
