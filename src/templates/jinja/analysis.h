#pragma once

#include "jinja/ast.h"

namespace sftrun::templates::jinja {

/// The analysis of jinja2's compiler before a template runs: the names that are undefined in a
/// scope until it assigns them, which of caller, kwargs and varargs a macro uses, and whether
/// filters and tests exist.
/// @throws TemplateError with the line.
void analyse(Template& parsed);

}  // namespace sftrun::templates::jinja
