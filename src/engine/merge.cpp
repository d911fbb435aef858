#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <map>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/safetensors.h"

/// W + scale * B A, tensor by tensor: the memory of one tensor, whatever the model's size.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

DType stored_dtype(const std::string& wanted, const weights::Checkpoint& base) {
  if (wanted == "f32") return DType::kF32;
  if (wanted == "f16") return DType::kF16;
  if (wanted == "bf16") return DType::kBF16;
  const std::string& format = base.tensors().at(0).format;
  if (format == "F32") return DType::kF32;
  if (format == "F16") return DType::kF16;
  return DType::kBF16;
}

at::ScalarType to_torch(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kF16 ? at::kHalf : at::kBFloat16;
}

void merge_tensor(const weights::Checkpoint& base, const std::string& name,
                  const std::vector<int64_t>& shape, const weights::LoraPair& pair, int64_t r,
                  double scale, DType dtype, void* destination) {
  const at::NoGradGuard no_grad;
  at::Tensor merged = at::empty(shape, at::kFloat);
  base.read(name, DType::kF32, merged.data_ptr());
  const at::Tensor a =
      at::from_blob(const_cast<float*>(pair.a.data()), {r, pair.in_features}, at::kFloat);
  const at::Tensor b =
      at::from_blob(const_cast<float*>(pair.b.data()), {pair.out_features, r}, at::kFloat);
  merged.addmm_(b, a, 1, scale);
  at::from_blob(destination, shape, to_torch(dtype)).copy_(merged);
}

}  // namespace

int run_merge(const nlohmann::json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  const fs::path base_path = request.at("model").get<std::string>(),
                 adapter_path = request.at("adapter").get<std::string>();
  const fs::path output = request.at("output").get<std::string>();
  const auto base = weights::Checkpoint::open(base_path);
  const auto config = weights::AdapterConfig::load(adapter_path);
  const auto adapter = weights::load_adapter(adapter_path, config, base->arch());
  if (!adapter.saved.empty())
    throw DataError("adapters with modules_to_save cannot be merged by this version",
                    adapter_path.string());
  const DType dtype = stored_dtype(request.at("dtype").get<std::string>(), *base);
  const double r = static_cast<double>(config.r);
  const double scale = config.use_rslora ? config.lora_alpha / std::sqrt(r) : config.lora_alpha / r;

  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base->tensors()) {
    const std::string module =
        info.name.ends_with(".weight") ? info.name.substr(0, info.name.size() - 7) : info.name;
    const auto pair = adapter.lora.find(module);
    const std::string name = info.name, file_name = info.file_name();
    const std::vector<int64_t> shape = info.shape;
    if (pair == adapter.lora.end()) {
      tensors.push_back(
          {file_name, dtype, shape, [&, name](void* to) { base->read(name, dtype, to); }});
    } else {
      tensors.push_back({file_name, dtype, shape, [&, name, shape, pair](void* to) {
                           merge_tensor(*base, name, shape, pair->second, config.r, scale, dtype,
                                        to);
                         }});
    }
  }
  fs::path temporary = output;
  temporary += ".unfinished";
  std::error_code code;
  fs::remove_all(temporary, code);
  make_directories(temporary);
  weights::write_sharded_safetensors(
      temporary, tensors, static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>()));
  model::write_config(*base, base_path, temporary, dtype);
  model::write_text_files(*base, base_path, temporary, weights::read_chat_template(adapter_path));
  fs::remove(output, code);  // the front made sure that it is empty or absent
  fs::rename(temporary, output, code);
  if (code)
    throw DeviceError("cannot put the merged model into place: " + code.message(), output.string());
  log::info("merged {} modules into {} ({})", adapter.lora.size(), output.string(), name_of(dtype));
  return 0;
}

}  // namespace sftrun::engine
