#pragma once

#include <string_view>

#include "jinja/ast.h"

namespace sftrun::templates::jinja {

/// Parses and checks a template. @throws TemplateError with the line.
Template parse_template(std::string_view source);

}  // namespace sftrun::templates::jinja
