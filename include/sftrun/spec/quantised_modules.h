#pragma once

#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Names of the linear modules that are quantised: all but routers, embedding and head.
std::vector<std::string> quantised_modules(const ArchSpec& arch);
/// Whether experts' matrices [experts, rows, columns] can be quantised in blocks of `block_size`
/// values such that no block spans two experts.
bool splits_by_expert(const std::vector<int64_t>& shape, int64_t block_size);

}  // namespace sftrun::spec
