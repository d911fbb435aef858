#pragma once

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

/// Attributes, items and slices, by the rules of jinja2's immutable sandbox.
namespace sftrun::templates::jinja {

/// value.name: the type's own methods first, then the item of that name; Undefined if there is
/// neither.
/// @throws TemplateError on an undefined value.
Value get_attribute(Runtime& runtime, const Value& value, std::string_view name);
/// value[key]: the item first, then the attribute.
Value get_item(Runtime& runtime, const Value& value, const Value& key);
/// value[start:stop:step]; None for an omitted part.
Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step);

/// Looks up "a.b.0" in a value, as the `attribute` parameter of filters does.
Value get_path(Runtime& runtime, const Value& value, const Value& path);

}  // namespace sftrun::templates::jinja
