#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

/// Element types of stored tensors, and floating-point conversions equal to PyTorch's.
namespace sftrun {

enum class DType { kF32, kF16, kBF16, kF64, kI64, kI32, kU8, kI8, kF8E4M3, kOther };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
      return 1;
    case DType::kOther:
      return 0;
  }
  return 0;
}

// The names of a dtype, from one table. "other" for kOther.
std::string_view name_of(DType dtype);              ///< in this program: "fp32"
std::string_view torch_name_of(DType dtype);        ///< in PyTorch and in config.json: "float32"
std::string_view safetensors_name_of(DType dtype);  ///< in safetensors files: "F32"
/// The floating-point type (kF32, kF16 or kBF16) that any of these names means; letters of both
/// cases.
std::optional<DType> float_dtype_named(std::string_view name);

inline float bf16_to_f32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
/// Rounds to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace sftrun
