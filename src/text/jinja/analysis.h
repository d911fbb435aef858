#pragma once

#include "jinja/ast.h"

namespace sftrun::text::jinja {

/// What jinja2's compiler works out before a template runs: which names a scope leaves unset until
/// it assigns them, which of caller, kwargs and varargs a macro uses, and that filters and tests
/// exist.
/// @throws TemplateError with the line.
void analyse(Template& parsed);

}  // namespace sftrun::text::jinja
