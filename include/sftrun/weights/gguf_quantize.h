#pragma once

#include <cstddef>
#include <cstdint>

#include "sftrun/weights/gguf.h"

/// Numbers to GGUF's blocks.
namespace sftrun::weights {

/// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K.
bool can_quantize(const GgmlTypeInfo& type);

/// `count` numbers to whole blocks. Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are bit-equal to gguf-py's
/// `quants.quantize`; these and Q4_K, Q5_K and Q6_K to what ggml's `ggml_quantize_chunk` makes of
/// them without an importance matrix. Threads may share a tensor, each with whole blocks of its
/// own.
/// @param[out] blocks count / block_size * block_bytes bytes, any alignment
/// @pre can_quantize(type) and count is a multiple of block_size; numbers are finite
void quantize(const GgmlTypeInfo& type, const float* numbers, int64_t count, std::byte* blocks);

/// Whether a number takes fewer than 8 bits.
constexpr bool has_fewer_than_8_bits(const GgmlTypeInfo& type) {
  return type.block_bytes < type.block_size;
}

}  // namespace sftrun::weights
