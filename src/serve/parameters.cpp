#include "parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/strings.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& problem) {
  throw ApiError(kBadRequest, fmt::format("\"{}\" {}", excerpt(key), problem), key);
}

}  // namespace

const Json* Parameters::find(const std::string& key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Parameters::flag(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::optional<int64_t> Parameters::integer(const std::string& key, int64_t min, int64_t max) {
  const auto value = number(key, static_cast<double>(min), static_cast<double>(max));
  if (!value) return std::nullopt;
  if (*value != std::floor(*value)) refuse(key, "must be a whole number");
  return static_cast<int64_t>(*value);
}

std::optional<double> Parameters::number(const std::string& key, double min, double max) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool is_number = value->is_number();
  const double number = is_number ? value->get<double>() : 0;
  if (!is_number || !(number >= min && number <= max))
    refuse(key, fmt::format("must be a number from {} to {}", min, max));
  return number;
}

std::optional<uint64_t> Parameters::seed(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) refuse(key, "must be an integer of 64 bits");
  return value->is_number_unsigned() ? value->get<uint64_t>()
                                     : static_cast<uint64_t>(value->get<int64_t>());
}

std::vector<std::string> Parameters::texts(const std::string& key, size_t most, size_t max_bytes) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::string> texts;
  const bool is_list = value->is_array();
  const size_t count = is_list ? value->size() : 1;
  if (count > most) refuse(key, fmt::format("has more than {} strings", most));
  for (size_t i = 0; i < count; ++i) {
    const Json& text = is_list ? (*value)[i] : *value;
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      refuse(key, "must be a string or a list of strings, none empty");
    texts.push_back(text.get<std::string>());
    if (texts.back().size() > max_bytes)
      refuse(key, fmt::format("has a string of {} bytes; at most {} are allowed",
                              texts.back().size(), max_bytes));
  }
  return texts;
}

void Parameters::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.insert(key);
}

void Parameters::require_neutral(const std::string& key, std::initializer_list<Json> neutral,
                                 const std::string& reason) {
  const Json* value = find(key);
  if (value == nullptr || std::find(neutral.begin(), neutral.end(), *value) != neutral.end())
    return;
  refuse(key, "is not supported: " + reason);
}

void Parameters::require_no_others() const {
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key)) continue;
    const std::vector<std::string> names(known_.begin(), known_.end());
    const std::string near = nearest(excerpt(key), names);
    refuse(key,
           near.empty()
               ? "is not a parameter of this request"
               : fmt::format("is not a parameter of this request; did you mean \"{}\"?", near));
  }
}

}  // namespace sftrun::serve
