#include "sftrun/core/dtype.h"

#include <algorithm>
#include <array>
#include <string>

#include "sftrun/core/strings.h"

namespace sftrun {

namespace {

struct DTypeNames {
  DType dtype;
  std::string_view name, torch, safetensors;
};

constexpr auto kNames = std::to_array<DTypeNames>({
    {DType::kF32, "fp32", "float32", "F32"},
    {DType::kF16, "fp16", "float16", "F16"},
    {DType::kBF16, "bf16", "bfloat16", "BF16"},
    {DType::kF64, "fp64", "float64", "F64"},
    {DType::kI64, "int64", "int64", "I64"},
    {DType::kI32, "int32", "int32", "I32"},
    {DType::kU8, "uint8", "uint8", "U8"},
    {DType::kI8, "int8", "int8", "I8"},
    {DType::kF8E4M3, "fp8", "float8_e4m3fn", "F8_E4M3"},
    {DType::kOther, "other", "other", "other"},
});

const DTypeNames& dtype_names_of(DType dtype) {
  const auto found = std::find_if(kNames.begin(), kNames.end(),
                                  [dtype](const DTypeNames& names) { return names.dtype == dtype; });
  return found == kNames.end() ? kNames.back() : *found;
}

}  // namespace

std::string_view name_of(DType dtype) {
  return dtype_names_of(dtype).name;
}
std::string_view torch_name_of(DType dtype) {
  return dtype_names_of(dtype).torch;
}
std::string_view safetensors_name_of(DType dtype) {
  return dtype_names_of(dtype).safetensors;
}

std::optional<DType> float_dtype_named(std::string_view name) {
  const std::string wanted = ascii_lower(std::string(name));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const DTypeNames& names = dtype_names_of(dtype);
    if (wanted == names.name || wanted == names.torch ||
        wanted == ascii_lower(std::string(names.safetensors)))
      return dtype;
  }
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fU, mantissa = bits & 0x3ffU, wide;
  if (exponent == 0x1f) {
    wide = sign | 0x7f800000U | mantissa << 13;
  } else if (exponent != 0) {
    wide = sign | (exponent + 112) << 23 | mantissa << 13;
  } else if (mantissa == 0) {
    wide = sign;
  } else {  // subnormal: shift the leading one into place
    exponent = 113;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    wide = sign | exponent << 23 | (mantissa & 0x3ffU) << 13;
  }
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t f32_to_f16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  bits &= 0x7fffffffU;
  if (bits > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (bits >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // rounds to 65536 or more
  if (bits < 0x38800000U) {                                               // subnormal half or zero
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5F;  // aligns the half's last bit with the float's; addition rounds to even
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000U));
  }
  bits += 0xfffU + ((bits >> 13) & 1U) - (112U << 23);
  return static_cast<uint16_t>(sign | bits >> 13);
}

}  // namespace sftrun
