#include "sftrun/weights/convert.h"

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
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == safetensors_name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace sftrun::weights
