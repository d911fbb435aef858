#pragma once

#include <optional>
#include <string>

#include "jinja/runtime.h"
#include "jinja/value.h"

/// Values as text, byte for byte as Python prints them.
namespace sftrun::templates::jinja {

std::string print_integer(Int value);
std::string print_integer(const Value& value);
std::string print_float(double value);  ///< Python's repr: shortest digits that read back the same

/// Python's str(). Strings keep their origins, everything else gets the value's origin.
TaggedText to_text(Runtime& runtime, const Value& value);
/// Python's repr().
TaggedText to_repr(Runtime& runtime, const Value& value);
/// A text with the characters & < > " ' escaped for HTML, as markupsafe does.
TaggedText escape_html(Runtime& runtime, const TaggedText& text);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  ///< one level's white space; none: all on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
/// Python's json.dumps. @throws TemplateError for what it cannot serialise.
TaggedText to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace sftrun::templates::jinja
