#include "layouts.h"

#include <algorithm>

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

float CodedMatrix::row_scale(int64_t row) const {
  const bool is_one = static_cast<int64_t>(scales.size()) == size_of(scale_dtype);
  float value;
  convert(scale_dtype, scales.data() + (is_one ? 0 : row) * size_of(scale_dtype), DType::kF32,
          reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

const StoredLayout& stored_layout(QuantLayout layout) {
  SFTRUN_CHECK(layout != QuantLayout::kNone);
  return *kStoredLayouts[static_cast<size_t>(layout) - 1];
}

std::span<const StoredLayout* const> stored_layouts() {
  return kStoredLayouts;
}

void dequantize(const CodedMatrix& matrix, int64_t first, int64_t count, float* destination) {
  stored_layout(quant_info(matrix.format).layout).dequantize(matrix, first, count, destination);
}

std::function<void(const CodedMatrix&, std::byte*)> bytes_of(
    std::span<const std::byte> CodedMatrix::*part) {
  return [part](const CodedMatrix& matrix, std::byte* destination) {
    const std::span<const std::byte> bytes = matrix.*part;
    std::copy(bytes.begin(), bytes.end(), destination);
  };
}

}  // namespace sftrun::weights
