#include "layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/weights/convert.h"

namespace sftrun::weights {
namespace {

constexpr std::string_view kWeightEnding = ".weight";

}  // namespace

std::string module_of_weight(const std::string& name) {
  if (!name.ends_with(kWeightEnding)) return {};
  return name.substr(0, name.size() - kWeightEnding.size());
}

std::string MatrixToStore::module() const {
  return module_of_weight(name);
}

std::string StoredLayout::codes_name(const std::string& name) const {
  return codes_ending.empty() ? name : module_of_weight(name) + std::string(codes_ending);
}

float CodedMatrix::scale(int64_t index) const {
  const bool is_one = static_cast<int64_t>(scales.size()) == size_of(scale_dtype);
  float value;
  convert(scale_dtype, scales.data() + (is_one ? 0 : index) * size_of(scale_dtype), DType::kF32,
          reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

int64_t CodedMatrix::bytes_in_memory() const {
  constexpr int64_t kScale = 4, kZero = 1, kRowOfTiles = 4;  // of kernels::QuantizedMatrix
  SFTRUN_CHECK(block_size == 0);
  if (format == QuantFormat::kInt4Groups) {
    const auto of_map = static_cast<int64_t>(column_groups.size());
    return bytes_of_groups(rows, columns, {.block_size = columns}) + of_map +
           rows * (groups_of_row() - 1) * (kScale + kZero);
  }
  const auto of_codes = static_cast<int64_t>(codes.size());
  if (tile == 0) return of_codes + rows * kScale;
  return of_codes + (rows + tile - 1) / tile * tiles_of_row() * kScale + rows * kRowOfTiles;
}

const CodedMatrix* first_coded(const PackedMatrix& matrix) {
  if (const auto* parts = std::get_if<CodedParts>(&matrix)) return parts->parts.data();
  return std::get_if<CodedMatrix>(&matrix);
}

void require_shape_of(const SafetensorsEntry& entry, const std::vector<int64_t>& shape,
                      const std::string& name, const std::string& where) {
  if (entry.shape == shape) return;
  throw DataError(fmt::format("tensor `{}` has the shape [{}], expected [{}]", name,
                              fmt::join(entry.shape, ", "), fmt::join(shape, ", ")),
                  where, "configuration and weights are of different models");
}

void ScalesOf8Bits::fail(const std::string& what) const {
  throw DataError(fmt::format("8-bit tensor `{}`: {}", name, what), where,
                  "download or copy the model again");
}

const SafetensorsEntry& ScalesOf8Bits::find(const std::string& scales, const FindEntry& find_entry,
                                            CodedMatrix& matrix) const {
  const SafetensorsEntry* found = find_entry(scales);
  if (found == nullptr) fail(fmt::format("`{}` is missing", scales));
  const auto dtype = float_dtype(found->dtype);
  if (!dtype) {
    fail(fmt::format("`{}` is stored as {}, expected F32, F16 or BF16", scales, found->dtype));
  }
  matrix.scales = found->bytes;
  matrix.scale_dtype = *dtype;
  return *found;
}

void ScalesOf8Bits::require_numbers(const CodedMatrix& matrix, int64_t count,
                                    const char* what) const {
  for (int64_t i = 0; i < count; ++i) {
    const float scale = matrix.scale(i);
    if (!std::isfinite(scale) || scale < 0)
      fail(fmt::format("the scale of {} {} is {}", what, i, scale));
  }
}

const StoredLayout& stored_layout(QuantLayout layout) {
  SFTRUN_CHECK(layout != QuantLayout::kNone);
  return *kStoredLayouts[static_cast<size_t>(layout) - 1];
}

std::span<const StoredLayout* const> stored_layouts() {
  return kStoredLayouts;
}

void dequantize(const CodedMatrix& matrix, int64_t first, int64_t count, float* destination) {
  const QuantLayout layout =
      matrix.layout == QuantLayout::kNone ? quant_info(matrix.format).layout : matrix.layout;
  stored_layout(layout).dequantize(matrix, first, count, destination);
}

std::function<void(const CodedMatrix&, std::byte*)> bytes_of(
    std::span<const std::byte> CodedMatrix::*part) {
  return [part](const CodedMatrix& matrix, std::byte* destination) {
    const std::span<const std::byte> bytes = matrix.*part;
    std::copy(bytes.begin(), bytes.end(), destination);
  };
}

}  // namespace sftrun::weights
