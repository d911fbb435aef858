#pragma once

#include <cstdint>

namespace sftrun::kernels {

/// Limit of tokens of the CUDA kernel that multiplies few tokens with a quantised matrix
/// (generation). Reading 4-bit weights twice is 1 byte per value; dequantising them once for tensor
/// cores reads 0.5 bytes, writes 2 and reads 2. For more tokens that kernel is slower.
inline constexpr int64_t kMaxThinTokens = 16;

}  // namespace sftrun::kernels
