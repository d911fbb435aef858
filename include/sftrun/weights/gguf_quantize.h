#pragma once

#include <cstddef>
#include <cstdint>

#include "sftrun/weights/gguf.h"

/// Quantises values to GGUF's block formats.
namespace sftrun::weights {

/// True for F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K.
bool can_quantize(const GgmlTypeInfo& type);

/// Quantises `count` values to whole blocks. Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are bit-equal to
/// gguf-py's `quants.quantize`; all formats are bit-equal to ggml's `ggml_quantize_chunk` without
/// an importance matrix. Threads may share a tensor if each one has its own whole blocks.
/// @param[out] blocks count / block_size * block_bytes bytes, any alignment
/// @pre can_quantize(type); count is a multiple of block_size; values are finite
void quantize(const GgmlTypeInfo& type, const float* numbers, int64_t count, std::byte* blocks);

/// Whether the format takes fewer than 8 bits per value.
constexpr bool has_fewer_than_8_bits(const GgmlTypeInfo& type) {
  return type.block_bytes < type.block_size;
}

}  // namespace sftrun::weights
