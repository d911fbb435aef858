#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <map>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/safetensors.h"

/// W + scale * B A, tensor by tensor: the memory of one tensor, whatever the model's size.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

at::Tensor from_file(const std::vector<float>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

/// scale * B A; of experts for each of them, as peft orders their values.
at::Tensor update_of(const weights::LoraPair& pair) {
  const int64_t r = pair.r;
  if (pair.num_experts == 0) {
    return at::mm(from_file(pair.b, {pair.out_features, r}),
                  from_file(pair.a, {r, pair.in_features}))
        .mul_(pair.scale);
  }
  const at::Tensor a = from_file(pair.a, {pair.num_experts, r, pair.in_features}),
                   b = from_file(pair.b, {pair.out_features, r, pair.num_experts});
  return at::matmul(b.permute({2, 0, 1}), a).mul_(pair.scale);
}

/// The update of gpt-oss's gate_up has its rows in turn, as the files' tensor has its columns.
at::Tensor in_order_of(const weights::TensorInfo& info, const at::Tensor& update) {
  const std::vector<int64_t>& view = info.layout.view;  // [experts, 2, inner, in]
  if (view.size() != 4) return update;
  return update.view({view[0], view[2], view[1], view[3]}).transpose(1, 2).reshape(info.shape);
}

/// A base weight with its update, in fp32. Parts of one tensor are asked for one after the other:
/// the last answer is kept.
class MergedTensor {
 public:
  explicit MergedTensor(const weights::Checkpoint& base) : base_(base) {}

  at::Tensor of(const weights::TensorInfo& info, const weights::LoraPair& pair) {
    if (name_ == info.name) return merged_;
    const at::NoGradGuard no_grad;
    merged_ = at::empty(info.shape, at::kFloat);
    base_.read(info.name, DType::kF32, merged_.data_ptr());
    merged_.add_(in_order_of(info, update_of(pair)));
    name_ = info.name;
    return merged_;
  }

 private:
  const weights::Checkpoint& base_;
  std::string name_;
  at::Tensor merged_;
};

}  // namespace

int run_merge(const nlohmann::json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  const fs::path base_path = request.at("model").get<std::string>(),
                 adapter_path = request.at("adapter").get<std::string>();
  const fs::path output = request.at("output").get<std::string>();
  const auto base = weights::Checkpoint::open(base_path);
  const auto config = weights::load_adapter_config(adapter_path, base->arch());
  const auto adapter = weights::load_adapter(adapter_path, config, base->arch());
  if (!adapter.saved.empty())
    throw DataError("adapters with modules_to_save cannot be merged by this version",
                    adapter_path.string());
  const DType dtype = dtype_to_store(request.at("dtype").get<std::string>(), *base);

  MergedTensor merged(*base);
  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base->tensors()) {
    const std::string module =
        info.name.ends_with(".weight") ? info.name.substr(0, info.name.size() - 7) : info.name;
    const auto pair = adapter.lora.find(module);
    std::function<at::Tensor()> values;
    if (pair != adapter.lora.end())
      values = [&merged, &info, pair] { return merged.of(info, pair->second); };
    model::add_stored(*base, info, dtype, values, tensors);
  }
  write_new_directory(output, "the merged model", [&](const fs::path& directory) {
    weights::write_sharded_safetensors(
        directory, tensors, static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>()));
    model::write_config(*base, base_path, directory, dtype);
    model::write_text_files(*base, base_path, directory, weights::read_chat_template(adapter_path));
  });
  log::info("merged {} modules into {} ({})", adapter.lora.size(), output.string(), name_of(dtype));
  return 0;
}

}  // namespace sftrun::engine
