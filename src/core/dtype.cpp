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
  const auto found = std::find_if(kNames.begin(), kNames.end(), [dtype](const DTypeNames& names) {
    return names.dtype == dtype;
  });
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

}  // namespace sftrun
