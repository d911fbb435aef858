#pragma once

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// A test: what `value is name(args)` calls.
using Test = bool (*)(Runtime&, const Value& value, const Args& args);

/// jinja2's built-in tests, or null.
Test find_test(std::string_view name);

}  // namespace sftrun::templates::jinja
