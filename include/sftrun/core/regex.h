#pragma once

#include <string>

namespace sftrun {

/// Whether std::regex takes it.
bool is_regex(const std::string& text);

}  // namespace sftrun
