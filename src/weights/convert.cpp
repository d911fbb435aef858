#include "convert.h"

#include <cstring>

#include "half.h"
#include "sftrun/core/error.h"

namespace sftrun::weights {
namespace {

template <typename From, typename To, typename Function>
void each(const std::byte* source, std::byte* destination, int64_t count, Function&& function) {
  for (int64_t i = 0; i < count; ++i) {
    From in;
    std::memcpy(&in, source + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To out = function(in);
    std::memcpy(destination + i * static_cast<int64_t>(sizeof(To)), &out, sizeof(To));
  }
}

template <typename Stored, typename Widen>
void from_stored(const std::byte* source, DType to, std::byte* destination, int64_t count,
                 Widen&& widen) {
  switch (to) {
    case DType::kF32:
      return each<Stored, float>(source, destination, count, widen);
    case DType::kF16:
      return each<Stored, uint16_t>(source, destination, count,
                                    [&](Stored value) { return float_to_half(widen(value)); });
    case DType::kBF16:
      return each<Stored, uint16_t>(source, destination, count,
                                    [&](Stored value) { return f32_to_bf16(widen(value)); });
    default:
      invariant_failed(__FILE__, __LINE__, "weights are read as fp32, fp16 or bf16");
  }
}

}  // namespace

void convert(DType from, const std::byte* source, DType to, std::byte* destination, int64_t count) {
  if (from == to) {
    if (count > 0) std::memcpy(destination, source, static_cast<size_t>(count * size_of(from)));
    return;
  }
  switch (from) {
    case DType::kF32:
      return from_stored<float>(source, to, destination, count, [](float v) { return v; });
    case DType::kF16:
      return from_stored<uint16_t>(source, to, destination, count,
                                   [](uint16_t v) { return half_to_float(v); });
    case DType::kBF16:
      return from_stored<uint16_t>(source, to, destination, count,
                                   [](uint16_t v) { return bf16_to_f32(v); });
    default:
      invariant_failed(__FILE__, __LINE__, "weights are stored as fp32, fp16 or bf16");
  }
}

std::optional<DType> float_dtype(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF64:
      return "F64";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kOther:
      break;
  }
  invariant_failed(__FILE__, __LINE__, "a tensor to be written has a dtype");
}

}  // namespace sftrun::weights
