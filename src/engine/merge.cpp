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
#include "sftrun/model/pissa.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/safetensors.h"

/// W + scale * B A, with DoRA its rows at their magnitudes; tensor by tensor: the memory of one
/// tensor, whatever the model's size.
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
  MergedTensor(const weights::Checkpoint& base, bool pissa) : base_(base), pissa_(pissa) {}

  at::Tensor of(const weights::TensorInfo& info, const weights::LoraPair& pair) {
    if (name_ == info.name) return merged_;
    const at::NoGradGuard no_grad;
    merged_ = at::empty(info.shape, at::kFloat);
    base_.read(info.name, DType::kF32, merged_.data_ptr());
    if (pissa_) {
      const model::PrincipalPart part = model::principal_part(merged_, pair.r, pair.scale);
      merged_.sub_(at::mm(part.b, part.a).mul_(pair.scale));
    }
    merged_.add_(in_order_of(info, update_of(pair)));
    if (!pair.magnitude.empty()) scale_rows(from_file(pair.magnitude, {info.shape[0]}));
    name_ = info.name;
    return merged_;
  }

 private:
  /// DoRA: rows get the lengths that were learnt.
  void scale_rows(const at::Tensor& magnitude) {
    const at::Tensor lengths = at::linalg_vector_norm(merged_, 2, at::IntArrayRef({1}));
    merged_.mul_((magnitude / lengths).unsqueeze(1));
  }

  const weights::Checkpoint& base_;
  bool pissa_;  // the update stands beside what its principal part leaves
  std::string name_;
  at::Tensor merged_;
};

/// The tensors of the merged model, and whether its head parts from the embedding it was tied to.
class MergedModel {
 public:
  MergedModel(const weights::Checkpoint& base, const weights::AdapterTensors& adapter, bool pissa)
      : base_(base), adapter_(adapter), merged_(base, pissa) {}

  /// @throws DataError for an update that no tensor of the base takes
  std::vector<weights::TensorToWrite> tensors(DType dtype) {
    require_place_for_head();
    std::vector<weights::TensorToWrite> result;
    for (const weights::TensorInfo& info : base_.tensors())
      model::add_stored(base_, info, dtype, values_of(info), result);
    if (parts_head()) result.push_back(head(dtype));
    return result;
  }

  bool parts_head() const {
    return base_.arch().tie_word_embeddings &&
           (adapter_.saved.contains(kHead) || adapter_.saved.contains(embedding()));
  }

 private:
  void require_place_for_head() const {
    if (!base_.arch().tie_word_embeddings || !adapter_.lora.contains("lm_head")) return;
    throw DataError("the adapter has an update of lm_head, which the base ties to its embedding",
                    "lm_head", "such updates are not supported: train lm_head by modules_to_save");
  }

  static constexpr const char* kHead = "lm_head.weight";
  std::string embedding() const { return base_.arch().prefix + "embed_tokens.weight"; }

  /// Empty: as the base has it.
  std::function<at::Tensor()> values_of(const weights::TensorInfo& info) {
    const auto saved = adapter_.saved.find(info.name);
    if (saved != adapter_.saved.end())
      return [&info, saved] { return from_file(saved->second, info.shape); };
    const std::string module =
        info.name.ends_with(".weight") ? info.name.substr(0, info.name.size() - 7) : info.name;
    const auto pair = adapter_.lora.find(module);
    if (pair == adapter_.lora.end()) return {};
    return [this, &info, pair] { return merged_.of(info, pair->second); };
  }

  weights::TensorToWrite head(DType dtype) const {
    const std::vector<int64_t> shape = {base_.arch().vocab_size, base_.arch().hidden_size};
    const auto saved = adapter_.saved.find(kHead);
    if (saved == adapter_.saved.end()) {
      return {kHead, dtype, shape, [this, dtype](void* to) { base_.read(embedding(), dtype, to); }};
    }
    return {kHead, dtype, shape, [dtype, shape, saved](void* to) {
              at::from_blob(to, shape, model::torch_dtype(dtype))
                  .copy_(from_file(saved->second, shape));
            }};
  }

  const weights::Checkpoint& base_;
  const weights::AdapterTensors& adapter_;
  MergedTensor merged_;
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
  const DType dtype = dtype_to_store(request.at("dtype").get<std::string>(), *base);

  MergedModel merged(*base, adapter, config.pissa);
  const std::vector<weights::TensorToWrite> tensors = merged.tensors(dtype);
  write_new_directory(output, "the merged model", [&](const fs::path& directory) {
    weights::write_sharded_safetensors(
        directory, tensors, static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>()));
    model::write_config(*base, base_path, directory, dtype, merged.parts_head());
    model::write_text_files(*base, base_path, directory, weights::read_chat_template(adapter_path));
  });
  log::info("merged {} modules into {} ({})", adapter.lora.size(), output.string(), name_of(dtype));
  if (!adapter.saved.empty())
    log::info("{} tensors are the adapter's own (modules_to_save)", adapter.saved.size());
  return 0;
}

}  // namespace sftrun::engine
