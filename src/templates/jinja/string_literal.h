#pragma once

#include <string>
#include <string_view>

namespace sftrun::templates::jinja {

/// The value of a quoted literal's inside: Python's escapes, unknown ones kept with their
/// backslash.
/// @throws TemplateError for a broken escape.
std::string unescape_literal(std::string_view literal, int line);

}  // namespace sftrun::templates::jinja
