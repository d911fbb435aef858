#include "json_fields.h"

#include <cmath>
#include <limits>
#include <optional>

#include "sftrun/core/error.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/utf8.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

/// The value as text for a message, at most 60 characters.
std::string shown(const json& value) {
  constexpr size_t kMax = 60;
  if (value.is_number_float()) return dump_python_json(nlohmann::ordered_json(value));
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > kMax ? std::string(utf8_prefix(text, kMax)) + "..." : text;
}

/// An integer; also 2048.0, which some tools write.
std::optional<int64_t> as_int(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 1e15) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

JsonFields::JsonFields(const json& object, std::string where, std::string prefix, std::string path)
    : object_(object),
      where_(std::move(where)),
      prefix_(std::move(prefix)),
      path_(std::move(path)) {
  if (!object_.is_object()) {
    throw DataError(path_.empty() ? "not a JSON object" : path_ + " is not a JSON object", where_);
  }
}

const json* JsonFields::find(const std::string& key) const {
  const auto found = object_.find(prefix_ + key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::fail_missing(const std::string& key) const {
  throw DataError(fmt::format("`{}` is missing", full_name(key)), where_);
}

void JsonFields::fail(const std::string& key, const std::string& expected) const {
  const json* value = find(key);
  throw DataError(fmt::format("`{}` must be {}; it is {}", full_name(key), expected,
                              value ? shown(*value) : "missing"),
                  where_);
}

int64_t JsonFields::require_int(const std::string& key, int64_t least, int64_t most) const {
  const json* value = find(key);
  if (!value) fail_missing(key);
  const std::optional<int64_t> number = as_int(*value);
  if (!number || *number < least || *number > most) {
    fail(key, fmt::format("an integer from {} to {}", least, most));
  }
  return *number;
}

int64_t JsonFields::get_int(const std::string& key, int64_t otherwise, int64_t least,
                            int64_t most) const {
  return has(key) ? require_int(key, least, most) : otherwise;
}

double JsonFields::require_positive(const std::string& key) const {
  const json* value = find(key);
  if (!value) fail_missing(key);
  const double number = value->is_number() ? value->get<double>() : -1.0;
  if (!std::isfinite(number) || number <= 0) fail(key, "a number greater than 0");
  return number;
}

double JsonFields::get_positive(const std::string& key, double otherwise) const {
  return has(key) ? require_positive(key) : otherwise;
}

bool JsonFields::get_bool(const std::string& key, bool otherwise) const {
  const json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string JsonFields::get_string(const std::string& key, const std::string& otherwise) const {
  const json* value = find(key);
  if (!value) return otherwise;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::vector<int64_t> JsonFields::get_ids(const std::string& key) const {
  const json* value = find(key);
  if (!value) return {};
  std::vector<int64_t> ids;
  for (const json& item : value->is_array() ? *value : json::array({*value})) {
    const std::optional<int64_t> id = as_int(item);
    if (!id || *id < 0) fail(key, "a token id or a list of token ids");
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace sftrun::spec
