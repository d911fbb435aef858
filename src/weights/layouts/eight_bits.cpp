#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "layouts.h"
#include "sftrun/core/error.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/convert.h"
#include "shape_math.h"

/// The tensors of a matrix in 8 bits: MODULE.weight, and in bitsandbytes' LLM.int8 MODULE.SCB and
/// MODULE.weight_format; in e4m3 of compressed-tensors ("float-quantized", by channel or tensor)
/// and fbgemm MODULE.weight_scale and optionally MODULE.input_scale.
namespace sftrun::weights {
namespace {

using nlohmann::ordered_json;

#include "sftrun/weights/eight_bits.inl"

/// How files store a format.
struct FileForm {
  QuantFormat format;
  DType dtype;
  const char* scales;        ///< ending of the name of the rows' scales
  const char* other_scales;  ///< of the same dtype with scales of blocks; null: none
  /// Values of codes that share a scale.
  void (*dequantize)(std::span<const std::byte> codes, float scale, float* out);
};

template <typename Value>
void dequantize_each(std::span<const std::byte> codes, float* out, const Value& value) {
  for (const std::byte code : codes) *out++ = value(static_cast<uint8_t>(code));
}

constexpr FileForm kE4m3Form{
    QuantFormat::kFp8, DType::kF8E4M3, ".weight_scale", ".weight_scale_inv",
    [](std::span<const std::byte> codes, float scale, float* out) {
      dequantize_each(codes, out, [=](uint8_t code) { return e4m3_value(code) * scale; });
    }};
constexpr FileForm kInt8Form{
    QuantFormat::kInt8, DType::kI8, ".SCB", nullptr,
    [](std::span<const std::byte> codes, float scale, float* out) {
      dequantize_each(codes, out, [=](uint8_t code) { return int8_value(code, scale); });
    }};

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

template <const FileForm& kForm>
bool has_8bit_codes(const std::string& name, const FindEntry& find) {
  const SafetensorsEntry* entry = find(name);
  return entry != nullptr && !module_of_weight(name).empty() &&
         entry->dtype == safetensors_name_of(kForm.dtype);
}

std::vector<std::string> beside_eight_bits(const std::string& name, const FindEntry& find) {
  std::vector<std::string> names;
  for (const char* ending : {".weight_scale", ".input_scale", ".SCB", ".weight_format"}) {
    const std::string beside = module_of_weight(name) + ending;
    if (find(beside) != nullptr) names.push_back(beside);
  }
  return names;
}

template <const FileForm& kForm>
std::vector<CodedMatrix> read_eight_bits(const std::string& name, const std::vector<int64_t>& shape,
                                         const FindEntry& find, const std::string& where,
                                         const spec::QuantizationConfig& /*config*/) {
  const SafetensorsEntry& entry = *find(name);
  CodedMatrix matrix{.format = kForm.format, .rows = shape.at(0), .codes = entry.bytes};
  matrix.columns = static_cast<int64_t>(entry.bytes.size()) / std::max<int64_t>(1, matrix.rows);
  require_shape_of(entry, shape, name, where);
  const ScalesOf8Bits scales{name, where};
  const std::string module = module_of_weight(name);
  if (kForm.other_scales != nullptr && find(module + kForm.scales) == nullptr) {
    scales.fail(
        fmt::format("`{}{}` is missing, and so is `{}{}`, which models with a scale per block "
                    "have",
                    module, kForm.scales, module, kForm.other_scales));
  }
  check_layout(scales.find(module + kForm.scales, find, matrix), matrix.rows, name, where);
  const auto count = static_cast<int64_t>(matrix.scales.size()) / size_of(matrix.scale_dtype);
  scales.require_numbers(matrix, count, "row");
  return {matrix};
}

template <const FileForm& kForm>
void dequantize_eight_bits(const CodedMatrix& matrix, int64_t first, int64_t count, float* out) {
  const int64_t columns = matrix.columns;
  for (int64_t i = first; i < first + count;) {
    const int64_t row = i / columns, end = std::min(first + count, (row + 1) * columns);
    const auto length = static_cast<size_t>(end - i);
    kForm.dequantize(matrix.codes.subspan(static_cast<size_t>(i), length), matrix.scale(row), out);
    out += length;
    i = end;
  }
}

template <const FileForm& kForm>
std::vector<CodedTensor> rows_to_write(const MatrixToStore& matrix,
                                       std::vector<int64_t> scales_shape) {
  return {{matrix.name, kForm.dtype, matrix.shape, bytes_of(&CodedMatrix::codes)},
          {matrix.module() + kForm.scales, DType::kF32, std::move(scales_shape),
           bytes_of(&CodedMatrix::scales)}};
}

/// As compressed-tensors does.
std::vector<CodedTensor> fp8_to_write(const MatrixToStore& matrix) {
  return rows_to_write<kE4m3Form>(matrix, {matrix.shape.at(0), 1});
}

/// As transformers + bitsandbytes save it.
std::vector<CodedTensor> int8_to_write(const MatrixToStore& matrix) {
  std::vector<CodedTensor> tensors = rows_to_write<kInt8Form>(matrix, {matrix.shape.at(0)});
  // Of older layouts than rows one after the other.
  tensors.push_back({matrix.module() + ".weight_format",
                     DType::kU8,
                     {},
                     [](const CodedMatrix& /*of*/, std::byte* to) { *to = std::byte{0}; }});
  return tensors;
}

/// As llm-compressor's FP8_DYNAMIC writes: one scale per row of a weight, and one per token of
/// activations, computed when the model runs.
ordered_json fp8_config(const ModelToStore& model) {
  const ordered_json weights{{"num_bits", 8},
                             {"type", "float"},
                             {"symmetric", true},
                             {"strategy", "channel"},
                             {"dynamic", false}},
      activations{{"num_bits", 8},
                  {"type", "float"},
                  {"symmetric", true},
                  {"strategy", "token"},
                  {"dynamic", true}};
  ordered_json ignored = ordered_json::array();
  for (const std::string& module : model.dense)
    ignored.push_back(module == "lm_head" ? module : "re:.*" + escaped(module) + "$");
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}},
          {"ignore", ignored}};
}

/// As transformers' BitsAndBytesConfig writes itself.
ordered_json int8_config(const ModelToStore& model) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", false},
          {"load_in_8bit", true},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", model.dense}};
}

template <const FileForm& kForm>
constexpr StoredLayout layout_of_rows(QuantLayout layout, decltype(StoredLayout::tensors) tensors,
                                      decltype(StoredLayout::config) config) {
  return {.layout = layout,
          .holds = has_8bit_codes<kForm>,
          .additional = beside_eight_bits,
          .read = read_eight_bits<kForm>,
          .dequantize = dequantize_eight_bits<kForm>,
          .tensors = tensors,
          .config = config};
}

}  // namespace

constinit const StoredLayout kBitsandbytes8Layout =
    layout_of_rows<kInt8Form>(QuantLayout::kBitsandbytes8, int8_to_write, int8_config);
constinit const StoredLayout kCompressedFp8Layout =
    layout_of_rows<kE4m3Form>(QuantLayout::kCompressedFp8, fp8_to_write, fp8_config);

}  // namespace sftrun::weights
