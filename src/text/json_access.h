#pragma once

#include <fmt/format.h>

#include <string>

#include "sftrun/core/error.h"
#include "sftrun/text/chat_template.h"

/// Fields of JSON sections, with an error that names the field when it is missing or of another
/// type.
namespace sftrun::text {

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

}  // namespace sftrun::text
