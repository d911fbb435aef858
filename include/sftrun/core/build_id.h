#pragma once

#include <string>

namespace sftrun {

/// What tells this build of the program from others: the linker's build id of the object that holds
/// this code, or its path, size and time where it has none.
const std::string& build_id();

}  // namespace sftrun
