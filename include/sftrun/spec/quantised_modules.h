#pragma once

#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Names of the linear modules that nf4 and fp4 are for: all but routers, embedding and head.
std::vector<std::string> quantised_modules(const ArchSpec& arch);

}  // namespace sftrun::spec
