#pragma once

#include <cstddef>
#include <cstdint>

#include "sftrun/core/file_layout.h"

namespace sftrun::weights {

/// The layout of one entry of the first dimension, which must be the first in both orders.
FileLayout within_first(const FileLayout& layout);

/// Copies a tensor from the file's order to the order in memory.
void from_file_order(const FileLayout& layout, int64_t element_size, const std::byte* file,
                     std::byte* memory);

}  // namespace sftrun::weights
