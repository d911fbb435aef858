#pragma once

#include <string>

#include "sftrun/config/problem.h"
#include "value.h"

namespace sftrun::config {

/// One YAML document as values with their places. `<<` merges are followed. Duplicate keys, keys
/// that are not plain text and several documents in one are added to `problems`, at
/// `name`:line:column.
/// @throws ConfigProblems for a syntax error, after which nothing is known of the rest
Value parse_yaml(const std::string& text, const std::string& name, Problems& problems);

/// The value of a `key=value` override: YAML on one line. @throws ConfigError (no place) if it is
/// not.
Value parse_yaml_value(const std::string& text);

}  // namespace sftrun::config
