#pragma once

#include <string>

namespace sftrun {

/// Whether std::regex takes it.
bool is_regex(const std::string& text);

/// A dotted name as the expression that is this name alone.
std::string escaped(const std::string& text);

}  // namespace sftrun
