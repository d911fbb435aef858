#include "eight_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "convert.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

#include "sftrun/weights/eight_bits.inl"

/// How files store a format.
struct FileForm {
  QuantFormat format;
  const char* dtype;
  const char* scales;  ///< ending of the name of the rows' scales
  /// Values of codes that share a scale.
  void (*dequantize)(std::span<const std::byte> codes, float scale, float* out);
};

template <typename Value>
void dequantize_each(std::span<const std::byte> codes, float* out, const Value& value) {
  for (const std::byte code : codes) *out++ = value(static_cast<uint8_t>(code));
}

constexpr FileForm kForms[] = {
    {QuantFormat::kFp8, "F8_E4M3", ".weight_scale",
     [](std::span<const std::byte> codes, float scale, float* out) {
       dequantize_each(codes, out, [=](uint8_t code) { return e4m3_value(code) * scale; });
     }},
    {QuantFormat::kInt8, "I8", ".SCB",
     [](std::span<const std::byte> codes, float scale, float* out) {
       dequantize_each(codes, out, [=](uint8_t code) { return int8_value(code, scale); });
     }}};

/// nullptr: no type of 8-bit codes
const FileForm* form_of_dtype(const std::string& dtype) {
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms),
                                   [&](const FileForm& form) { return form.dtype == dtype; });
  return found == std::end(kForms) ? nullptr : found;
}

const FileForm& form_of(QuantFormat format) {
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms),
                                   [&](const FileForm& form) { return form.format == format; });
  SFTRUN_CHECK(found != std::end(kForms));
  return *found;
}

constexpr const char* kWeightEnding = ".weight";

/// The common prefix of a matrix's tensors; empty if `name` is not a module's weight.
std::string module_of_weight(const std::string& name) {
  if (!name.ends_with(kWeightEnding)) return {};
  return name.substr(0, name.size() - std::strlen(kWeightEnding));
}

[[noreturn]] void fail(const std::string& name, const std::string& what, const std::string& where) {
  throw DataError(fmt::format("8-bit tensor `{}`: {}", name, what), where,
                  "download or copy the model again");
}

/// Allowed shapes: [rows], [rows, 1], or a single scale: [], [1] or [1, 1]. Others are block
/// scales.
void check_layout(const SafetensorsEntry& scales, int64_t rows, const std::string& name,
                  const std::string& where) {
  std::vector<int64_t> shape = scales.shape;
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  if (scales.shape.size() <= 2 && (shape.empty() || shape == std::vector<int64_t>{rows})) return;
  throw DataError(
      fmt::format(
          "8-bit tensor `{}`: its scales have the shape [{}], expected [{}] (one per row) or [1]",
          name, fmt::join(scales.shape, ", "), rows),
      where,
      "use a checkpoint with one scale per row, or the unquantised one with tuning.quant: fp8");
}

void check_scales(const EightBitRows& matrix, const std::string& name, const std::string& where) {
  const auto count = static_cast<int64_t>(matrix.scales.size()) / size_of(matrix.scale_dtype);
  for (int64_t row = 0; row < count; ++row) {
    const float scale = matrix.scale(row);
    if (std::isfinite(scale) && scale >= 0) continue;
    fail(name, fmt::format("the scale of row {} is {}", row, scale), where);
  }
}

}  // namespace

float EightBitRows::scale(int64_t row) const {
  const bool is_one = static_cast<int64_t>(scales.size()) == size_of(scale_dtype);
  float value;
  convert(scale_dtype, scales.data() + (is_one ? 0 : row) * size_of(scale_dtype), DType::kF32,
          reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

bool has_8bit_codes(const std::string& name, const FindEntry& find) {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr || module_of_weight(name).empty()) return false;
  return form_of_dtype(entry->dtype) != nullptr;
}

std::vector<std::string> beside_eight_bits(const std::string& name, const FindEntry& find) {
  std::vector<std::string> names;
  for (const char* ending : {".weight_scale", ".input_scale", ".SCB", ".weight_format"}) {
    const std::string beside = module_of_weight(name) + ending;
    if (find(beside) != nullptr) names.push_back(beside);
  }
  return names;
}

EightBitRows read_eight_bits(const std::string& name, const std::vector<int64_t>& shape,
                             const FindEntry& find, const std::string& where) {
  const SafetensorsEntry& entry = *find(name);
  const FileForm& form = *form_of_dtype(entry.dtype);
  EightBitRows matrix{.format = form.format, .codes = entry.bytes, .rows = shape.at(0)};
  if (entry.shape != shape) {
    throw DataError(fmt::format("tensor `{}` has the shape [{}], expected [{}]", name,
                                fmt::join(entry.shape, ", "), fmt::join(shape, ", ")),
                    where, "configuration and weights are of different models");
  }
  const std::string scales = module_of_weight(name) + form.scales;
  const SafetensorsEntry* found = find(scales);
  if (found == nullptr) fail(name, fmt::format("`{}` is missing", scales), where);
  const auto dtype = float_dtype(found->dtype);
  if (!dtype) {
    fail(name, fmt::format("`{}` is stored as {}, expected F32, F16 or BF16", scales, found->dtype),
         where);
  }
  check_layout(*found, matrix.rows, name, where);
  matrix.scales = found->bytes;
  matrix.scale_dtype = *dtype;
  check_scales(matrix, name, where);
  return matrix;
}

void dequantize(const EightBitRows& matrix, int64_t first, int64_t count, float* out) {
  if (matrix.rows == 0) return;
  const auto columns = static_cast<int64_t>(matrix.codes.size()) / matrix.rows;
  const FileForm& form = form_of(matrix.format);
  for (int64_t i = first; i < first + count;) {
    const int64_t row = i / columns, end = std::min(first + count, (row + 1) * columns);
    const auto length = static_cast<size_t>(end - i);
    form.dequantize(matrix.codes.subspan(static_cast<size_t>(i), length), matrix.scale(row), out);
    out += length;
    i = end;
  }
}

}  // namespace sftrun::weights
