#include <fmt/format.h>

#include <algorithm>

#include "layouts.h"
#include "sftrun/core/error.h"

/// e4m3 with a scale for each block of kFp8Block rows and columns. As DeepSeek's and Qwen's models and
/// transformers' FineGrainedFP8Config have it: NAME and NAME_scale_inv, which is multiplied (it is the
/// inverse of what the values were multiplied by). As compressed-tensors' strategy "block": NAME and
/// NAME_scale. NAME is MODULE.weight, or a tensor of all experts (mlp.experts.gate_up_proj), each of
/// which has blocks of its own. One scale for a whole matrix is read, too.
namespace sftrun::weights {
namespace {

#include "sftrun/weights/eight_bits.inl"

using Shape = std::vector<int64_t>;

constexpr const char *kInverseScales = "_scale_inv", *kBlockScales = "_scale";

int64_t blocks_in(int64_t values) {
  return (values + kFp8Block - 1) / kFp8Block;
}

/// [rows, columns] or [experts, rows, columns]
Shape shape_of_scales(Shape shape) {
  shape.back() = blocks_in(shape.back());
  shape[shape.size() - 2] = blocks_in(shape[shape.size() - 2]);
  return shape;
}

bool is_one_value(const SafetensorsEntry& entry) {
  return std::ranges::all_of(entry.shape, [](int64_t size) { return size == 1; });
}

/// Of a matrix with one scale per row, or one for all, `kCompressedFp8` is the layout.
bool has_scales_of_blocks(const SafetensorsEntry& codes, const SafetensorsEntry& scales) {
  return codes.shape.size() >= 2 && !is_one_value(scales) &&
         scales.shape == shape_of_scales(codes.shape) && scales.shape != Shape{codes.shape[0], 1};
}

bool has_fp8_blocks(const std::string& name, const FindEntry& find) {
  const SafetensorsEntry* codes = find(name);
  if (codes == nullptr || codes->dtype != safetensors_name_of(DType::kF8E4M3)) return false;
  if (find(name + kInverseScales) != nullptr) return true;
  const SafetensorsEntry* scales = find(name + kBlockScales);
  return scales != nullptr && has_scales_of_blocks(*codes, *scales);
}

std::vector<std::string> beside_fp8_blocks(const std::string& name, const FindEntry& find) {
  const std::string module = module_of_weight(name);
  const bool is_inverse = find(name + kInverseScales) != nullptr;
  std::vector<std::string> names = {name + (is_inverse ? kInverseScales : kBlockScales)};
  for (const char* ending : {".activation_scale", ".input_scale"})  // of static activations
    names.push_back(module + ending);
  std::erase_if(names, [&](const std::string& beside) { return find(beside) == nullptr; });
  return names;
}

/// A tensor of experts is divided into their matrices.
std::vector<CodedMatrix> matrices_of(const CodedMatrix& whole, const Shape& shape) {
  if (shape.size() == 2) return {whole};
  const auto experts = static_cast<size_t>(shape[0]);
  const bool is_one = static_cast<int64_t>(whole.scales.size()) == size_of(whole.scale_dtype);
  const size_t codes = whole.codes.size() / experts,
               scales = is_one ? 0 : whole.scales.size() / experts;
  std::vector<CodedMatrix> matrices(experts, whole);
  for (size_t i = 0; i < experts; ++i) {
    matrices[i].rows = shape[1];
    matrices[i].codes = whole.codes.subspan(i * codes, codes);
    if (!is_one) matrices[i].scales = whole.scales.subspan(i * scales, scales);
  }
  return matrices;
}

std::vector<CodedMatrix> read_fp8_blocks(const std::string& name, const Shape& shape,
                                         const FindEntry& find, const std::string& where,
                                         const spec::QuantizationConfig& /*config*/) {
  const SafetensorsEntry& entry = *find(name);
  CodedMatrix matrix{.format = QuantFormat::kFp8Blocks, .tile = kFp8Block, .codes = entry.bytes};
  require_shape_of(entry, shape, name, where);
  matrix.columns = shape.back();
  matrix.rows = shape.size() == 2 ? shape[0] : shape[0] * shape[1];
  const ScalesOf8Bits scales{name, where};
  const bool is_inverse = find(name + kInverseScales) != nullptr;
  const SafetensorsEntry& found =
      scales.find(name + (is_inverse ? kInverseScales : kBlockScales), find, matrix);
  const Shape expected = shape_of_scales(shape);
  if (found.shape != expected && !is_one_value(found)) {
    scales.fail(
        fmt::format("its scales have the shape [{}], expected [{}]: one for each block of {} rows "
                    "and {} columns",
                    fmt::join(found.shape, ", "), fmt::join(expected, ", "), kFp8Block, kFp8Block));
  }
  const auto count = static_cast<int64_t>(matrix.scales.size()) / size_of(matrix.scale_dtype);
  scales.require_numbers(matrix, count, "block");
  return matrices_of(matrix, shape);
}

void dequantize_fp8_blocks(const CodedMatrix& matrix, int64_t first, int64_t count, float* out) {
  const int64_t columns = matrix.columns;
  for (int64_t i = first; i < first + count;) {
    const int64_t row = i / columns, column = i % columns, block = column / matrix.tile,
                  stop = std::min({first + count, (row + 1) * columns,
                                   row * columns + (block + 1) * matrix.tile});
    const float scale = matrix.scale(row / matrix.tile * matrix.tiles_of_row() + block);
    for (; i < stop; ++i)
      *out++ = e4m3_value(static_cast<uint8_t>(matrix.codes[static_cast<size_t>(i)])) * scale;
  }
}

}  // namespace

constinit const StoredLayout kFp8BlocksLayout = {.layout = QuantLayout::kFp8Blocks,
                                                 .holds = has_fp8_blocks,
                                                 .additional = beside_fp8_blocks,
                                                 .read = read_fp8_blocks,
                                                 .dequantize = dequantize_fp8_blocks,
                                                 .tensors = nullptr,
                                                 .config = nullptr};

}  // namespace sftrun::weights
