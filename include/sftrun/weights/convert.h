#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sftrun/core/dtype.h"

namespace sftrun::weights {

/// Converts `count` values between kF32, kF16 and kBF16, rounding to nearest even as in PyTorch.
/// Any alignment.
void convert(DType from, const std::byte* source, DType to, std::byte* destination, int64_t count);

/// The dtype that `convert` supports for its name in safetensors files ("BF16"), if it is one.
std::optional<DType> float_dtype(std::string_view name);

}  // namespace sftrun::weights
