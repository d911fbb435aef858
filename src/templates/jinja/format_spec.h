#pragma once

#include <string>
#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// One conversion: the common parts of str.format's specification and a printf conversion.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  ///< '<', '>', '^', '=' or 0: the type's own
  char sign = '-';
  bool alternate = false;  ///< #
  int width = 0;
  char grouping = 0;  ///< ',' or '_'
  int precision = -1;
  char type = 0;
};

/// @throws TemplateError for an invalid specification.
FormatSpec parse_format_spec(std::string_view text);
/// A number as text with its sign, padded. @throws TemplateError for a type that does not fit.
std::string format_number(Runtime& runtime, const FormatSpec& spec, const Value& value);
/// Pads to the width. @param align the default alignment
TaggedText pad(Runtime& runtime, const FormatSpec& spec, const TaggedText& text, char align);

}  // namespace sftrun::templates::jinja
