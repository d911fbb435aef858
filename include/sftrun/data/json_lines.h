#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// JSON lines: one JSON object a line, UTF-8. A byte-order mark, CRLF line ends and blank lines are
/// accepted.
namespace sftrun::data {

/// Keeps the order of keys.
using Json = nlohmann::ordered_json;

struct JsonLine {
  std::string_view text;  ///< without line end and surrounding spaces, into the content split
  int64_t number = 0;     ///< in the file, from 1
};

/// The lines of `content` that are not blank.
/// @param name of the file, for errors   @throws DataError if the file is one JSON array, saying
/// how to convert it
std::vector<JsonLine> split_json_lines(std::string_view content, const std::string& name);

/// @param where "file:line", for errors
/// @throws DataError at file:line:column for invalid UTF-8, malformed JSON, JSON that is not an
/// object, or too deep nesting
Json parse_json_line(std::string_view line, const std::string& where);

/// Parses JSON in a string field; discarded if it is invalid or nested too deeply.
Json parse_json_text(std::string_view text);

/// The record with `additions` at its end, as one line. The record's line is copied byte for byte,
/// except that existing keys of `additions` get the new values.
std::string extend_json_line(std::string_view line, const Json& record, const Json& additions);

}  // namespace sftrun::data
