#include "four_bit_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <limits>

#include "sftrun/core/strings.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/spec/quantised_modules.h"

namespace sftrun::engine {
using nlohmann::ordered_json;

bool FourBitModules::take(const weights::TensorInfo& info) const {
  constexpr std::string_view kWeight = ".weight";
  return info.name.ends_with(kWeight) &&
         quantised.contains(info.name.substr(0, info.name.size() - kWeight.size()));
}

FourBitModules choose_modules(const spec::ArchSpec& arch, const std::vector<std::string>& skipped) {
  FourBitModules modules{.dense = {"lm_head"}, .unused = {skipped.begin(), skipped.end()}};
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
      if (linear.slot == spec::LinearSlot::kRouter) modules.dense.insert(linear.module);
    }
  }
  return modules;
}

void FourBitTensors::add(const weights::TensorInfo& info, const Values& values,
                         std::vector<weights::TensorToWrite>& tensors) {
  const std::string& name = info.file_name();
  const int64_t numel = info.numel(),
                blocks = (numel + options_.block_size - 1) / options_.block_size;
  const auto put = [&](const std::string& part, DType dtype, std::vector<int64_t> shape,
                       at::Tensor (*of)(const kernels::QuantizedMatrix&)) {
    tensors.push_back({name + part, dtype, std::move(shape), [this, &info, values, of](void* to) {
                         const at::Tensor written = of(quantised(info, values)).contiguous();
                         std::memcpy(to, written.const_data_ptr(), written.nbytes());
                       }});
  };
  put("", DType::kU8, {(numel + 1) / 2, 1}, [](const auto& matrix) { return matrix.packed; });
  put(".quant_map", DType::kF32, {16}, [](const auto& matrix) {
    const auto table = kernels::quant_table(matrix.format);
    return at::tensor(at::ArrayRef<float>(table.data(), table.size()));
  });
  if (options_.nested) {
    put(".absmax", DType::kU8, {blocks}, [](const auto& matrix) { return matrix.codes; });
    put(".nested_absmax", DType::kF32,
        {(blocks + weights::kNestedBlock - 1) / weights::kNestedBlock},
        [](const auto& matrix) { return matrix.nested_absmax; });
    put(".nested_quant_map", DType::kF32, {weights::kNestedBlock},
        [](const auto& /*matrix*/) { return kernels::nested_map(); });
  } else {
    put(".absmax", DType::kF32, {blocks}, [](const auto& matrix) { return matrix.absmax; });
  }
  add_state(info, values, tensors);
}

/// As long as with the longest offset: how long it is must be known before it is.
void FourBitTensors::add_state(const weights::TensorInfo& info, const Values& values,
                               std::vector<weights::TensorToWrite>& tensors) {
  ordered_json state{{"quant_type", format()},
                     {"blocksize", options_.block_size},
                     {"dtype", model::torch_dtype_name(dtype_)},
                     {"shape", info.shape}};
  if (options_.nested) {
    state["nested_blocksize"] = weights::kNestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = -std::numeric_limits<double>::max();
  }
  const size_t length = state.dump().size();
  tensors.push_back({info.file_name() + ".quant_state.bitsandbytes__" + format(),
                     DType::kU8,
                     {static_cast<int64_t>(length)},
                     [this, &info, values, state, length](void* to) {
                       ordered_json own = state;
                       if (options_.nested)
                         own["nested_offset"] = static_cast<double>(quantised(info, values).offset);
                       std::string text = own.dump();
                       text.resize(length, ' ');
                       std::memcpy(to, text.data(), length);
                     }});
}

const kernels::QuantizedMatrix& FourBitTensors::quantised(const weights::TensorInfo& info,
                                                          const Values& values) {
  if (name_ == info.name) return matrix_;
  const at::NoGradGuard no_grad;
  at::Tensor dense;
  if (values) {
    dense = values().to(model::torch_dtype(dtype_)).contiguous();
  } else {
    dense = at::empty(info.shape, model::torch_dtype(dtype_));
    base_.read(info.name, dtype_, dense.data_ptr());
  }
  matrix_ = kernels::quantize(dense, options_);
  name_ = info.name;
  return matrix_;
}

const char* FourBitTensors::format() const {
  return options_.format == kernels::QuantFormat::kFp4 ? "fp4" : "nf4";
}

ordered_json FourBitTensors::config(const FourBitModules& modules) const {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", format()},
          {"bnb_4bit_use_double_quant", options_.nested},
          {"bnb_4bit_compute_dtype", model::torch_dtype_name(dtype_)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", modules.dense}};
}

}  // namespace sftrun::engine
