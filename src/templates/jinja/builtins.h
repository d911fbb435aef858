#pragma once

#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// The functions of every chat template: range, dict, namespace, cycler, joiner, raise_exception,
/// strftime_now.
std::vector<std::pair<std::string, Value>> builtin_functions();

}  // namespace sftrun::templates::jinja
