#pragma once

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

using Method = Value (*)(Runtime&, const Value& self, const Args&);

/// A method of the value's type, or null.
Method find_method(const Value& value, std::string_view name);
Method find_string_method(std::string_view name);
Method find_container_method(const Value& value, std::string_view name);

/// Whether the sandbox rejects the method because it would change a list or a dictionary.
bool changes_its_object(const Value& value, std::string_view name);

}  // namespace sftrun::templates::jinja
