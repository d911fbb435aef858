#pragma once

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// Python's printf-style `format % values`; a tuple gives several values, a dictionary named ones.
Value percent_format(Runtime& runtime, const Value& format, const Value& values);
/// Python's str.format. `!r`, `!s`, attribute and item paths, and format specifications with fill,
/// alignment, sign, width, grouping, precision and type.
Value brace_format(Runtime& runtime, const Value& format, const Args& args);
/// `replace` of text_ops.h, with a check of the limits.
TaggedText paid_replace(Runtime& runtime, const TaggedText& text, std::string_view old,
                        const TaggedText& with, int64_t count);
/// Python's format(value, specification).
TaggedText format_value(Runtime& runtime, const Value& value, std::string_view specification);

}  // namespace sftrun::templates::jinja
