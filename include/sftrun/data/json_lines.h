#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

/// JSON lines: one JSON object per line, UTF-8.
namespace sftrun::data {

/// Keeps the order of keys.
using Json = nlohmann::ordered_json;

/// What follows a line in its file. It tells a record over several lines from a damaged one.
enum class NextLine {
  kNoLine,  ///< the record is an element of a JSON array
  kUnknown,
  kNone,    ///< the file ends
  kRecord,  ///< it begins and ends with braces
  kOther,
};

/// Numbers are kept as the line says (core/exact_json.h).
/// @param where "file:line", for errors
/// @throws DataError at file:line:column for invalid UTF-8, malformed JSON, JSON that is not an
/// object, too deep nesting, or a number beyond a double's range
Json parse_json_line(std::string_view line, const std::string& where,
                     NextLine next = NextLine::kUnknown);

/// Parses JSON in a string field; discarded if it is invalid or nested too deeply. Numbers are kept
/// as in lines.
Json parse_exact_text(std::string_view text);
/// The same, with fractions as doubles.
Json parse_json_text(std::string_view text);

/// The record with `additions` at its end, as one line. The record's line is copied byte for byte,
/// except that existing keys of `additions` get the new values.
std::string extend_json_line(std::string_view line, const Json& record, const Json& additions);

}  // namespace sftrun::data
