#include "foreign_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

/// "wandb_*" covers "wandb_project".
bool covers(std::string_view name, std::string_view key) {
  return name.ends_with('*') && key.starts_with(name.substr(0, name.size() - 1));
}

template <class Matches>
const ForeignKey* find_if(const Matches& matches) {
  const std::span<const ForeignKey> keys = foreign_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), matches);
  return found == keys.end() ? nullptr : &*found;
}

/// A scalar, or the only item of a list: `report_to: [tensorboard]`.
std::string single_value(const Value& value) {
  if (value.kind == Value::Kind::kScalar) return value.text;
  if (value.kind == Value::Kind::kList && value.items.size() == 1)
    return single_value(value.items[0]);
  return {};
}

bool is_same(std::string_view expected, const std::string& text) {
  const auto truth = parse_bool(text);
  if (truth && (expected == "true" || expected == "false")) return *truth == (expected == "true");
  // Unquoted `no` is a string in YAML 1.2 and a boolean in YAML 1.1.
  if (truth == false && expected == "no") return true;
  return ascii_lower(text) == ascii_lower(std::string(expected));
}

}  // namespace

const ForeignKey* find_foreign_key(std::string_view key) {
  const std::string_view leaf = key.substr(key.rfind('.') + 1);
  const auto is = [](std::string_view name) {
    return [name](const ForeignKey& foreign) { return foreign.name == name; };
  };
  if (const ForeignKey* whole = find_if(is(key))) return whole;
  if (const ForeignKey* last = find_if(is(leaf))) return last;
  return find_if([&](const ForeignKey& foreign) { return covers(foreign.name, leaf); });
}

std::string advice_on(const ForeignKey& foreign, const Value& value) {
  const std::string text = single_value(value);
  for (const ForeignValue& known : foreign_values()) {
    if (known.name == foreign.name && is_same(known.value, text)) return std::string(known.advice);
  }
  return foreign.advice.empty() ? fmt::format("use `{}`", foreign.field)
                                : std::string(foreign.advice);
}

}  // namespace sftrun::config
