#pragma once

#include <cstddef>
#include <string_view>

namespace sftrun {

/// How deeply brackets and braces of a JSON text are nested; those in its strings do not count. A
/// parser takes any depth, but what copies or prints a value calls itself for each level.
size_t json_depth(std::string_view text);

}  // namespace sftrun
