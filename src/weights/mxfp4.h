#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/core/file_layout.h"

/// MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 4-bit values with an 8-bit exponent as scale.
namespace sftrun::weights {

inline constexpr int64_t kMxfp4Block = 32;

/// As in safetensors files (gpt-oss): 16 bytes per block; of two adjacent values the first is in
/// the low nibble.
struct Mxfp4Blocks {
  std::span<const std::byte> codes, exponents;
};
/// Dequantises the blocks from `first` on until `out` is full.
void decode_mxfp4(const Mxfp4Blocks& blocks, int64_t first, std::vector<float>& out);

/// Layout of packed experts, in which the values of one output are contiguous: the dense layout
/// [experts, in, out…] with `in` moved to the end.
FileLayout mxfp4_layout(const FileLayout& dense);

}  // namespace sftrun::weights
