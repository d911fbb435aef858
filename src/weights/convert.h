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

/// Converts safetensors' type name ("BF16") to a dtype that `convert` supports, and back.
std::optional<DType> float_dtype(std::string_view name);
std::string_view safetensors_name(DType dtype);

}  // namespace sftrun::weights
