#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/core/file_layout.h"

/// MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of 4 bits share an exponent of 8.
namespace sftrun::weights {

inline constexpr int64_t kMxfp4Block = 32;

/// As safetensors hold it (gpt-oss): 16 bytes a block, the first of two neighbours low.
struct Mxfp4Blocks {
  std::span<const std::byte> codes, exponents;
};
/// Fills `out` from block `first` on.
void decode_mxfp4(const Mxfp4Blocks& blocks, int64_t first, std::vector<float>& out);

/// Of the values of packed experts, where those of one output follow one another: the dense layout
/// [experts, in, out…] with `in` last.
FileLayout mxfp4_layout(const FileLayout& dense);

}  // namespace sftrun::weights
