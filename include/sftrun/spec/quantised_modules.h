#pragma once

#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Names of the linear modules that are held in fewer bits: all but routers, embedding and head.
std::vector<std::string> quantised_modules(const ArchSpec& arch);
/// Whether a tensor of experts' matrices [experts, rows, columns] may be held in blocks of so many
/// values: none is of two experts.
bool splits_by_expert(const std::vector<int64_t>& shape, int64_t block_size);

}  // namespace sftrun::spec
