#include "reference.h"

#include <fmt/format.h>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

bool is_number(const Json& value) {
  return value.is_number() || is_kept_integer(value) || is_kept_fraction(value);
}

[[noreturn]] void refuse_missing(const Json& record, const std::string& key,
                                 const std::string& label, const std::string& where) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : record.items()) keys.push_back(name);
  const std::string near = nearest(key, keys);
  throw DataError(
      fmt::format("the reward {} reads the key \"{}\", which the record does not have", label, key),
      where,
      near.empty() ? fmt::format("name the key of the reference: {{name: …, key: …}}; the record "
                                 "has {}",
                                 excerpt(joined(keys, " and ")))
                   : fmt::format("did you mean \"{}\"? Set `key`", near));
}

std::string text_of_reference(const Json& value, const std::string& key, const std::string& label,
                              const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (is_number(value)) return number_text(value);
  throw DataError(fmt::format("\"{}\" is {}, which the reward {} cannot compare with an answer",
                              key, json_type(value), label),
                  where, "write a text, a number, or a list of them");
}

}  // namespace

std::vector<std::string> references_of(const Json& record, const std::string& key,
                                       const std::string& label, const std::string& where) {
  const auto found = record.find(key);
  if (found == record.end()) refuse_missing(record, key, label, where);
  std::vector<std::string> texts;
  if (found->is_null()) return texts;
  if (!found->is_array()) return {text_of_reference(*found, key, label, where)};
  for (const Json& item : *found) texts.push_back(text_of_reference(item, key, label, where));
  if (texts.empty())
    throw DataError(fmt::format("\"{}\", which the reward {} reads, is an empty list", key, label),
                    where, "write the right answers, or null for a record that is not judged");
  return texts;
}

}  // namespace sftrun::reward
