#pragma once

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

/// Python's operators on template values. @throws TemplateError where Python raises.
namespace sftrun::templates::jinja {

/// "+", "-", "*", "/", "//", "%" or "**".
Value binary(Runtime& runtime, std::string_view op, const Value& a, const Value& b);
Value negate(const Value& value);
Value plus(const Value& value);
/// "==", "!=", "<", "<=", ">", ">=", "in" or "not in".
bool compare(Runtime& runtime, std::string_view op, const Value& a, const Value& b);
bool contains(Runtime& runtime, const Value& container, const Value& item);
/// str + str, escaping the plain side where the other is marked safe.
Value concatenate(Runtime& runtime, const Value& a, const Value& b);
/// The integer; an error beyond 120 bits. (Python's integers are unlimited.)
Int checked_integer(Int value);

}  // namespace sftrun::templates::jinja
