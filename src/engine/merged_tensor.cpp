#include "merged_tensor.h"

#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/pissa.h"

namespace sftrun::engine {
namespace {

at::Tensor from_file(const std::vector<float>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

/// scale * B A; of experts for each of them, as peft orders their values.
at::Tensor product_of(const weights::LoraPair& pair) {
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

constexpr const char* kHead = "lm_head.weight";

}  // namespace

MergedWeights::MergedWeights(const weights::Checkpoint& base,
                             const weights::AdapterTensors& adapter, bool pissa)
    : base_(base), adapter_(adapter), pissa_(pissa) {
  if (!base_.arch().tie_word_embeddings || !adapter_.lora.contains("lm_head")) return;
  throw DataError("the adapter has an update of lm_head, which the base ties to its embedding",
                  "lm_head", "such updates are not supported: train lm_head by modules_to_save");
}

bool MergedWeights::parts_head() const {
  return base_.arch().tie_word_embeddings &&
         (adapter_.saved.contains(kHead) || adapter_.saved.contains(embedding()));
}

weights::TensorToWrite MergedWeights::head(DType dtype) const {
  const std::vector<int64_t> shape = {base_.arch().vocab_size, base_.arch().hidden_size};
  const auto saved = adapter_.saved.find(kHead);
  if (saved == adapter_.saved.end())
    return {kHead, dtype, shape, [this, dtype](void* to) { base_.read(embedding(), dtype, to); }};
  return {
      kHead, dtype, shape, [dtype, shape, saved](void* to) {
        at::from_blob(to, shape, model::torch_dtype(dtype)).copy_(from_file(saved->second, shape));
      }};
}

const weights::LoraPair* MergedWeights::update_of(const std::string& name) const {
  constexpr std::string_view kWeight = ".weight";
  const auto found = adapter_.lora.find(
      name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name);
  return found == adapter_.lora.end() ? nullptr : &found->second;
}

void MergedWeights::add_update(const weights::TensorInfo& info, const weights::LoraPair& pair) {
  if (pissa_) {
    const model::PrincipalPart part = model::principal_part(merged_, pair.r, pair.scale);
    merged_.sub_(at::mm(part.b, part.a).mul_(pair.scale));
  }
  merged_.add_(in_order_of(info, product_of(pair)));
  if (pair.magnitude.empty()) return;
  const at::Tensor lengths = at::linalg_vector_norm(merged_, 2, at::IntArrayRef({1}));
  merged_.mul_((from_file(pair.magnitude, {info.shape[0]}) / lengths).unsqueeze(1));
}

at::Tensor MergedWeights::of(const weights::TensorInfo& info) {
  if (const auto saved = adapter_.saved.find(info.name); saved != adapter_.saved.end())
    return from_file(saved->second, info.shape);
  if (name_ == info.name) return merged_;
  const at::NoGradGuard no_grad;
  merged_ = at::Tensor();  // let go before the next one takes its place
  merged_ = at::empty(info.shape, at::kFloat);
  base_.read(info.name, DType::kF32, merged_.data_ptr());
  if (const weights::LoraPair* pair = update_of(info.name)) add_update(info, *pair);
  name_ = info.name;
  return merged_;
}

}  // namespace sftrun::engine
