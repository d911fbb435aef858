#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "json_text.h"
#include "layouts.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "shape_math.h"

/// The tensors that bitsandbytes saves for a matrix in 4 bits: NAME, NAME.absmax, NAME.quant_map,
/// NAME.quant_state.bitsandbytes__nf4 (JSON as bytes), and with double quantisation
/// NAME.nested_absmax and NAME.nested_quant_map (functional.py, QuantState.as_dict). Two codes per
/// byte, the first in the high nibble.
namespace sftrun::weights {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::array kStates = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
constexpr const char* kFix = "download or copy the model again";

float float_at(std::span<const std::byte> bytes, int64_t i) {
  float value;
  std::memcpy(&value, bytes.data() + i * 4, 4);
  return value;
}

/// Reads the tensors of one matrix.
class Reader {
 public:
  Reader(const std::string& name, const FindEntry& find, const std::string& where)
      : name_(name), find_(find), where_(where) {}

  CodedMatrix read(const std::vector<int64_t>& shape) {
    CodedMatrix matrix;
    const json state = read_state(matrix);
    const int64_t numel = checked_shape(state, shape);
    matrix.rows = shape.empty() ? 1 : shape.front();
    matrix.columns = numel / std::max<int64_t>(1, matrix.rows);
    matrix.block_size = positive(state, "blocksize");
    if (matrix.block_size % 2 != 0)
      fail(fmt::format("the block size {} is odd; bitsandbytes' block sizes are even",
                       matrix.block_size));
    const int64_t blocks = (numel + matrix.block_size - 1) / matrix.block_size;
    // The bytes do not depend on the storage type (`bnb_4bit_quant_storage`).
    matrix.codes = find_(name_)->bytes;
    require_bytes(name_, matrix.codes, (numel + 1) / 2);
    matrix.table = part(".quant_map", "F32", 16);
    matrix.is_nested = state.contains("nested_blocksize");
    matrix.scales = part(".absmax", matrix.is_nested ? "U8" : "F32", blocks);
    if (matrix.is_nested)
      read_nested(state, blocks, matrix);
    else
      require_finite(".absmax", matrix.scales);
    require_finite(".quant_map", matrix.table);
    return matrix;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("bitsandbytes tensor `{}`: {}", name_, what), where_, kFix);
  }

  json read_state(CodedMatrix& matrix) {
    for (const char* ending : kStates) {
      const SafetensorsEntry* entry = find_(name_ + ending);
      if (!entry) continue;
      state_name_ = name_ + ending;
      const std::string text(reinterpret_cast<const char*>(entry->bytes.data()),
                             entry->bytes.size());
      json state = parse_json(text, where_ + ": " + state_name_);
      if (!state.is_object()) fail("its quant_state is not a JSON object");
      const std::string type = state.value("quant_type", json()).is_string()
                                   ? state.at("quant_type").get<std::string>()
                                   : std::string();
      const QuantFormatInfo* format = find_quant_format(type);
      if (format == nullptr || format->layout != QuantLayout::kBitsandbytes4)
        fail(fmt::format("`quant_type` is {}, expected nf4 or fp4",
                         excerpt(state.value("quant_type", json()).dump())));
      matrix.format = format->format;
      return state;
    }
    fail("its quant_state is missing");
  }

  int64_t positive(const json& state, const char* key) const {
    const auto found = state.find(key);
    constexpr int64_t kMax = 1 << 20;
    if (found == state.end() || !found->is_number_integer() || found->get<int64_t>() < 1 ||
        found->get<int64_t>() > kMax)
      fail(fmt::format("`{}` is {}", key,
                       found == state.end() ? "missing" : excerpt(found->dump())));
    return found->get<int64_t>();
  }

  int64_t checked_shape(const json& state, const std::vector<int64_t>& shape) const {
    const auto found = state.find("shape");
    if (found == state.end() || *found != json(shape)) {
      throw DataError(
          fmt::format("tensor `{}` has the shape {}, expected {}", name_,
                      found == state.end() ? "?" : excerpt(found->dump()), json(shape).dump()),
          where_, "configuration and weights are of different models");
    }
    return checked_numel(shape).value();
  }

  void read_nested(const json& state, int64_t blocks, CodedMatrix& matrix) const {
    const int64_t nested_block = positive(state, "nested_blocksize");
    if (nested_block != kNestedBlock)
      fail(fmt::format("`nested_blocksize` is {}, expected {}", nested_block, kNestedBlock));
    const json offset = state.value("nested_offset", json());
    if (!offset.is_number() || !std::isfinite(offset.get<double>()))
      fail(fmt::format("`nested_offset` is {}", excerpt(offset.dump())));
    matrix.offset = static_cast<float>(offset.get<double>());
    matrix.nested_scales =
        part(".nested_absmax", "F32", (blocks + kNestedBlock - 1) / kNestedBlock);
    matrix.nested_map = part(".nested_quant_map", "F32", kNestedBlock);
    require_finite(".nested_absmax", matrix.nested_scales);
    require_finite(".nested_quant_map", matrix.nested_map);
  }

  void require_finite(const char* ending, std::span<const std::byte> floats) const {
    const auto count = static_cast<int64_t>(floats.size() / sizeof(float));
    for (int64_t i = 0; i < count; ++i) {
      const float value = float_at(floats, i);
      if (!std::isfinite(value)) fail(fmt::format("`{}` {} is {}", name_ + ending, i, value));
    }
  }

  std::span<const std::byte> part(const char* ending, const char* dtype, int64_t count) const {
    const SafetensorsEntry* entry = find_(name_ + ending);
    if (!entry) fail(fmt::format("`{}` is missing", name_ + ending));
    if (entry->dtype != dtype)
      fail(fmt::format("`{}` is stored as {}, expected {}", entry->name, entry->dtype, dtype));
    require_bytes(entry->name, entry->bytes, count * (entry->dtype == "U8" ? 1 : 4));
    return entry->bytes;
  }

  void require_bytes(const std::string& name, std::span<const std::byte> bytes,
                     int64_t expected) const {
    if (static_cast<int64_t>(bytes.size()) != expected)
      fail(fmt::format("`{}` has {} bytes, expected {}", name, bytes.size(), expected));
  }

  const std::string& name_;
  const FindEntry& find_;
  const std::string& where_;
  std::string state_name_;
};

float factor_of(const CodedMatrix& matrix, int64_t block) {
  if (!matrix.is_nested) return float_at(matrix.scales, block);
  const auto code = static_cast<int64_t>(matrix.scales[static_cast<size_t>(block)]);
  const float value =
      float_at(matrix.nested_map, code) * float_at(matrix.nested_scales, block / kNestedBlock);
  return value + matrix.offset;
}

bool has_4bit_codes(const std::string& name, const FindEntry& find) {
  return find(name) != nullptr &&
         std::any_of(kStates.begin(), kStates.end(),
                     [&](const char* ending) { return find(name + ending) != nullptr; });
}

std::vector<std::string> beside_four_bits(const std::string& name, const FindEntry& find) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& of) {
    if (find(of) != nullptr) names.push_back(of);
  };
  for (const char* ending : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
    add(name + ending);
  for (const char* ending : kStates) add(name + ending);
  return names;
}

std::vector<CodedMatrix> read_four_bits(const std::string& name, const std::vector<int64_t>& shape,
                                        const FindEntry& find, const std::string& where,
                                        const spec::QuantizationConfig& /*config*/) {
  return {Reader(name, find, where).read(shape)};
}

void dequantize_four_bits(const CodedMatrix& matrix, int64_t first, int64_t count, float* out) {
  for (int64_t i = first; i < first + count;) {
    const int64_t block = i / matrix.block_size,
                  end = std::min(first + count, (block + 1) * matrix.block_size);
    const float scale = factor_of(matrix, block);
    for (; i < end; ++i) {
      const auto byte = static_cast<uint8_t>(matrix.codes[static_cast<size_t>(i / 2)]);
      *out++ = float_at(matrix.table, i % 2 == 0 ? byte >> 4 : byte & 15) * scale;
    }
  }
}

/// Its length must be known before its offset, so it has the length of one with the longest offset.
CodedTensor state_to_write(const MatrixToStore& matrix) {
  const std::string format(quant_info(matrix.options.format).name);
  ordered_json state{{"quant_type", format},
                     {"blocksize", matrix.options.block_size},
                     {"dtype", torch_name_of(matrix.dtype)},
                     {"shape", matrix.shape}};
  if (matrix.options.nested) {
    state["nested_blocksize"] = kNestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = -std::numeric_limits<double>::max();
  }
  const size_t length = state.dump().size();
  return {matrix.name + ".quant_state.bitsandbytes__" + format,
          DType::kU8,
          {static_cast<int64_t>(length)},
          [state, length](const CodedMatrix& quantised, std::byte* to) {
            ordered_json own = state;
            if (quantised.is_nested) own["nested_offset"] = static_cast<double>(quantised.offset);
            std::string text = own.dump();
            text.resize(length, ' ');
            std::memcpy(to, text.data(), length);
          }};
}

std::vector<CodedTensor> four_bits_to_write(const MatrixToStore& matrix) {
  const int64_t size = matrix.options.block_size, numel = matrix.numel(),
                blocks = (numel + size - 1) / size,
                nested = (blocks + kNestedBlock - 1) / kNestedBlock;
  const std::string& name = matrix.name;
  std::vector<CodedTensor> tensors{
      {name, DType::kU8, {(numel + 1) / 2, 1}, bytes_of(&CodedMatrix::codes)},
      {name + ".quant_map", DType::kF32, {16}, bytes_of(&CodedMatrix::table)},
      {name + ".absmax",
       matrix.options.nested ? DType::kU8 : DType::kF32,
       {blocks},
       bytes_of(&CodedMatrix::scales)}};
  if (matrix.options.nested) {
    tensors.push_back(
        {name + ".nested_absmax", DType::kF32, {nested}, bytes_of(&CodedMatrix::nested_scales)});
    tensors.push_back({name + ".nested_quant_map",
                       DType::kF32,
                       {kNestedBlock},
                       bytes_of(&CodedMatrix::nested_map)});
  }
  tensors.push_back(state_to_write(matrix));
  return tensors;
}

/// As transformers' BitsAndBytesConfig writes itself.
ordered_json four_bits_config(const ModelToStore& model) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", quant_info(model.options.format).name},
          {"bnb_4bit_use_double_quant", model.options.nested},
          {"bnb_4bit_compute_dtype", torch_name_of(model.dtype)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", model.dense}};
}

}  // namespace

constinit const StoredLayout kBitsandbytes4Layout = {.layout = QuantLayout::kBitsandbytes4,
                                                     .holds = has_4bit_codes,
                                                     .additional = beside_four_bits,
                                                     .read = read_four_bits,
                                                     .dequantize = dequantize_four_bits,
                                                     .tensors = four_bits_to_write,
                                                     .config = four_bits_config};

}  // namespace sftrun::weights
