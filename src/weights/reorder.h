#pragma once

#include <cstddef>
#include <cstdint>

#include "sftrun/core/file_layout.h"

namespace sftrun::weights {

/// The layout of each entry of the first dimension, which must stay the first.
FileLayout within_first(const FileLayout& layout);

/// Copies a tensor whose elements lie as files have them to where memory has them.
void from_file_order(const FileLayout& layout, int64_t element_size, const std::byte* file,
                     std::byte* memory);

}  // namespace sftrun::weights
