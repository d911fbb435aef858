#include "quantized_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/stored_matrix.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/quantised_modules.h"

namespace sftrun::exporting {
using nlohmann::ordered_json;
namespace {

constexpr std::string_view kWeight = ".weight";

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

const weights::StoredLayout& QuantizedTensors::layout() const {
  return weights::stored_layout(quant_info(options_.format).layout);
}

void QuantizedTensors::add(const weights::TensorInfo& info, const Values& values,
                           std::vector<weights::TensorToWrite>& tensors) {
  const Matrix matrix{&info, values};
  for (weights::CodedTensor& part :
       layout().tensors({info.file_name(), info.shape, options_, dtype_})) {
    tensors.push_back(
        {part.name, part.dtype, part.shape, [this, matrix, write = part.write](void* to) {
           write(model::coded_view(quantised(matrix)), static_cast<std::byte*>(to));
         }});
  }
}

ordered_json QuantizedTensors::config(const QuantizedModules& modules) const {
  return layout().config({options_, dtype_, modules.dense});
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

}  // namespace sftrun::exporting
