#pragma once

#include <string>

#include "sftrun/config/problem.h"
#include "sftrun/config/value.h"

namespace sftrun::config {

/// Reads one YAML document as values with their places. `<<` merges are resolved. Duplicate keys,
/// keys that are not plain text and several documents in one are added to `problems`, at
/// `name`:line:column.
/// @throws ConfigProblems for a syntax error
Value parse_yaml(const std::string& text, const std::string& name, Problems& problems);

/// Reads the value of a `key=value` override: YAML on one line. @throws ConfigError without a place
/// if it is not.
Value parse_yaml_value(const std::string& text);

}  // namespace sftrun::config
