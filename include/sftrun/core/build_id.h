#pragma once

#include <string>

namespace sftrun {

/// Identifies this build of the program: the linker's build id of the object that contains this
/// code; if it has none, its path, size and modification time.
const std::string& build_id();

}  // namespace sftrun
