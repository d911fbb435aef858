#include "quantized_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "sftrun/core/dtype.h"
#include "sftrun/core/error.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/quantised_modules.h"

namespace sftrun::exporting {
using nlohmann::ordered_json;
namespace {

constexpr std::string_view kWeight = ".weight";

std::string module_of(const weights::TensorInfo& info) {
  return info.file_name().substr(0, info.file_name().size() - kWeight.size());
}

}  // namespace

bool QuantizedModules::take(const weights::TensorInfo& info) const {
  return info.name.ends_with(kWeight) &&
         quantised.contains(info.name.substr(0, info.name.size() - kWeight.size()));
}

void QuantizedModules::require_used() const {
  if (unused.empty()) return;
  throw ConfigError(fmt::format("no module of the model is named `{}`", *unused.begin()),
                    "--skip-modules on the command line",
                    "name modules as the model does: down_proj, or layers.0.mlp");
}

QuantizedModules choose_modules(const spec::ArchSpec& arch,
                                const std::vector<std::string>& skipped) {
  QuantizedModules modules{.dense = {"lm_head"}, .unused = {skipped.begin(), skipped.end()}};
  const auto take = [&](const std::string& name) {
    bool is_skipped = false;
    for (const std::string& part : skipped) {
      if (!has_path_part(name, part)) continue;
      is_skipped = true;
      modules.unused.erase(part);
    }
    (is_skipped ? modules.dense : modules.quantised).insert(name);
  };
  modules.unused.erase("lm_head");
  for (const std::string& name : spec::quantised_modules(arch)) take(name);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.is_router) modules.dense.insert(linear.module);
    }
  }
  return modules;
}

void QuantizedTensors::put(const std::string& name, DType dtype, std::vector<int64_t> shape,
                           const Matrix& matrix, Part part,
                           std::vector<weights::TensorToWrite>& tensors) {
  tensors.push_back({name, dtype, std::move(shape), [this, matrix, part](void* to) {
                       const at::Tensor written = part(quantised(matrix)).contiguous();
                       std::memcpy(to, written.const_data_ptr(), written.nbytes());
                     }});
}

/// How a layout is written: the tensors of a matrix, and the model's `quantization_config`.
struct QuantizedTensors::FileForm {
  QuantLayout layout;
  void (QuantizedTensors::*add)(const Matrix& matrix, std::vector<weights::TensorToWrite>& tensors);
  ordered_json (QuantizedTensors::*config)(const QuantizedModules& modules) const;
};

const QuantizedTensors::FileForm& QuantizedTensors::form() const {
  using enum QuantLayout;
  static constexpr auto kForms = std::to_array<FileForm>(
      {{kBitsandbytes4, &QuantizedTensors::add_four_bits, &QuantizedTensors::four_bits_config},
       {kBitsandbytes8, &QuantizedTensors::add_int8, &QuantizedTensors::int8_config},
       {kCompressedFp8, &QuantizedTensors::add_fp8, &QuantizedTensors::fp8_config}});
  static constexpr auto kFind = [](QuantFormat format) {
    return std::ranges::find(kForms, quant_info(format).layout, &FileForm::layout);
  };
  static_assert(std::ranges::all_of(kQuantFormats, [](const QuantFormatInfo& info) {
    return !info.is_written() || kFind(info.format) != kForms.end();
  }));
  const auto* found = kFind(options_.format);
  SFTRUN_CHECK(found != kForms.end());
  return *found;
}

void QuantizedTensors::add(const weights::TensorInfo& info, const Values& values,
                           std::vector<weights::TensorToWrite>& tensors) {
  (this->*form().add)({&info, values}, tensors);
}

ordered_json QuantizedTensors::config(const QuantizedModules& modules) const {
  return (this->*form().config)(modules);
}

/// @param scales ending of their tensor's name
void QuantizedTensors::add_rows(const Matrix& matrix, DType dtype, const char* scales,
                                std::vector<int64_t> scales_shape,
                                std::vector<weights::TensorToWrite>& tensors) {
  const weights::TensorInfo& info = *matrix.info;
  put(
      info.file_name(), dtype, info.shape, matrix, [](const auto& source) { return source.packed; },
      tensors);
  put(
      module_of(info) + scales, DType::kF32, std::move(scales_shape), matrix,
      [](const auto& source) { return source.absmax; }, tensors);
}

/// As compressed-tensors does.
void QuantizedTensors::add_fp8(const Matrix& matrix, std::vector<weights::TensorToWrite>& tensors) {
  add_rows(matrix, DType::kF8E4M3, ".weight_scale", {matrix.info->shape.at(0), 1}, tensors);
}

/// As transformers + bitsandbytes save it.
void QuantizedTensors::add_int8(const Matrix& matrix,
                                std::vector<weights::TensorToWrite>& tensors) {
  add_rows(matrix, DType::kI8, ".SCB", {matrix.info->shape.at(0)}, tensors);
  // Of older layouts than rows one after the other.
  put(
      module_of(*matrix.info) + ".weight_format", DType::kU8, {}, matrix,
      [](const auto& /*of*/) { return at::zeros({1}, at::kByte); }, tensors);
}

void QuantizedTensors::add_four_bits(const Matrix& matrix,
                                     std::vector<weights::TensorToWrite>& tensors) {
  const weights::TensorInfo& info = *matrix.info;
  const std::string& name = info.file_name();
  const int64_t numel = info.numel(),
                blocks = (numel + options_.block_size - 1) / options_.block_size;
  const auto put = [&](const std::string& part, DType dtype, std::vector<int64_t> shape,
                       Part source) {
    this->put(name + part, dtype, std::move(shape), matrix, source, tensors);
  };
  put("", DType::kU8, {(numel + 1) / 2, 1}, [](const auto& matrix) { return matrix.packed; });
  put(".quant_map", DType::kF32, {16}, [](const auto& matrix) {
    const auto table = kernels::quant_table(matrix.format);
    return at::tensor(at::ArrayRef<float>(table.data(), table.size()));
  });
  if (options_.nested) {
    put(".absmax", DType::kU8, {blocks}, [](const auto& matrix) { return matrix.codes; });
    put(".nested_absmax", DType::kF32, {(blocks + kNestedBlock - 1) / kNestedBlock},
        [](const auto& matrix) { return matrix.nested_absmax; });
    put(".nested_quant_map", DType::kF32, {kNestedBlock},
        [](const auto& /*matrix*/) { return kernels::nested_map(); });
  } else {
    put(".absmax", DType::kF32, {blocks}, [](const auto& matrix) { return matrix.absmax; });
  }
  add_state(matrix, tensors);
}

/// Its length must be known before its offset, so it has the length of one with the longest offset.
void QuantizedTensors::add_state(const Matrix& matrix,
                                 std::vector<weights::TensorToWrite>& tensors) {
  const weights::TensorInfo& info = *matrix.info;
  ordered_json state{{"quant_type", quant_info(options_.format).name},
                     {"blocksize", options_.block_size},
                     {"dtype", torch_name_of(dtype_)},
                     {"shape", info.shape}};
  if (options_.nested) {
    state["nested_blocksize"] = kNestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = -std::numeric_limits<double>::max();
  }
  const size_t length = state.dump().size();
  tensors.push_back({info.file_name() + ".quant_state.bitsandbytes__" +
                         std::string(quant_info(options_.format).name),
                     DType::kU8,
                     {static_cast<int64_t>(length)},
                     [this, matrix, state, length](void* to) {
                       ordered_json own = state;
                       if (options_.nested)
                         own["nested_offset"] = static_cast<double>(quantised(matrix).offset);
                       std::string text = own.dump();
                       text.resize(length, ' ');
                       std::memcpy(to, text.data(), length);
                     }});
}

const kernels::QuantizedMatrix& QuantizedTensors::quantised(const Matrix& matrix) {
  const auto& [info_of, values] = matrix;
  const weights::TensorInfo& info = *info_of;
  if (name_ == info.name) return matrix_;
  const at::NoGradGuard no_grad;
  at::Tensor dense;
  if (values) {
    dense = values().to(model::torch_dtype(dtype_)).contiguous();
  } else {
    dense = at::empty(info.shape, model::torch_dtype(dtype_));
    base_.read(info.name, dtype_, dense.data_ptr());
  }
  matrix_ = kernels::quantize(dense, options_, info.name);
  name_ = info.name;
  return matrix_;
}

/// As llm-compressor's FP8_DYNAMIC writes: one scale per row of a weight, and one per token of
/// activations, computed when the model runs.
ordered_json QuantizedTensors::fp8_config(const QuantizedModules& modules) const {
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
  for (const std::string& module : modules.dense)
    ignored.push_back(module == "lm_head" ? module : "re:.*" + escaped(module) + "$");
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}},
          {"ignore", ignored}};
}

ordered_json QuantizedTensors::int8_config(const QuantizedModules& modules) const {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", false},
          {"load_in_8bit", true},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", modules.dense}};
}

ordered_json QuantizedTensors::four_bits_config(const QuantizedModules& modules) const {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", quant_info(options_.format).name},
          {"bnb_4bit_use_double_quant", options_.nested},
          {"bnb_4bit_compute_dtype", torch_name_of(dtype_)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", modules.dense}};
}

}  // namespace sftrun::exporting
