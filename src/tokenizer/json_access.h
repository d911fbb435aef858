#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

#include "sftrun/core/error.h"
#include "sftrun/core/python_json.h"
#include "sftrun/tokenizer/tokenizer.h"

/// Fields of JSON sections, with an error that names the field when it is missing or of another
/// type.
namespace sftrun::tokenizer {

/// Parses JSON from an untrusted file, as Python writes it; discarded if it is invalid or nested too deeply.
/// @tparam Document Json, or nlohmann::json for objects with many keys, which it sorts
template <typename Document = Json>
Document parse_document(std::string_view text) {
  return parse_python_json<Document>(text);
}

inline const Json& field_at(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key))
    throw DataError(fmt::format("`{}` is missing", key), where);
  return object.at(key);
}
inline std::string string_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = field_at(object, key, where);
  if (!value.is_string()) throw DataError(fmt::format("`{}` is not a string", key), where);
  return value.get<std::string>();
}
inline const Json& object_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = field_at(object, key, where);
  if (!value.is_object()) throw DataError(fmt::format("`{}` is not an object", key), where);
  return value;
}
inline const Json& array_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = field_at(object, key, where);
  if (!value.is_array()) throw DataError(fmt::format("`{}` is not a list", key), where);
  return value;
}
/// Missing and null mean the default.
inline bool bool_at(const Json& object, const char* key, bool default_value,
                    const std::string& where) {
  if (!object.contains(key) || object.at(key).is_null()) return default_value;
  if (!object.at(key).is_boolean())
    throw DataError(fmt::format("`{}` is not true or false", key), where);
  return object.at(key).get<bool>();
}
inline int64_t int_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = field_at(object, key, where);
  if (!value.is_number_integer())
    throw DataError(fmt::format("`{}` is not an integer", key), where);
  return value.get<int64_t>();
}

/// A Replace step with a literal or a pattern, in normalizers and decoders.
template <class Step, class Literal, class Pattern>
std::unique_ptr<Step> make_replace_step(const Json& section, const std::string& where) {
  const Json& pattern = object_at(section, "pattern", where);
  std::string content = string_at(section, "content", where);
  if (pattern.contains("Regex"))
    return std::make_unique<Pattern>(string_at(pattern, "Regex", where), std::move(content), where);
  std::string literal = string_at(pattern, "String", where);
  // The library compiles the literal to a pattern, and an empty one matches between all characters.
  if (literal.empty()) return std::make_unique<Pattern>("", std::move(content), where);
  return std::make_unique<Literal>(std::move(literal), std::move(content));
}

}  // namespace sftrun::tokenizer
