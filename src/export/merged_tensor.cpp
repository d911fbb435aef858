#include "merged_tensor.h"

#include <ATen/core/grad_mode.h>

#include "sftrun/core/error.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/model/pissa.h"
#include "sftrun/model/stored_matrix.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/tower.h"

namespace sftrun::exporting {
namespace {

at::Tensor from_file(const std::vector<float>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat);
}

/// scale * B A; of experts for each of them, as peft orders their values; of an embedding its
/// transpose.
at::Tensor product_of(const weights::LoraPair& pair) {
  const int64_t r = pair.r;
  if (pair.num_experts == 0) {
    const at::Tensor a = from_file(pair.a, {r, pair.in_features}),
                     b = from_file(pair.b, {pair.out_features, r});
    return (pair.of_embedding ? at::mm(a.t(), b.t()) : at::mm(b, a)).mul_(pair.scale);
  }
  const at::Tensor a = from_file(pair.a, {pair.num_experts, r, pair.in_features}),
                   b = from_file(pair.b, {pair.out_features, r, pair.num_experts});
  return at::matmul(b.permute({2, 0, 1}), a).mul_(pair.scale);
}

/// The update of gpt-oss's gate_up has its rows in turn, as the files' tensor has its columns.
at::Tensor in_order_of(const FileLayout& layout, const at::Tensor& update, at::IntArrayRef shape) {
  const std::vector<int64_t>& view = layout.view;  // [experts, 2, inner, in]
  if (view.size() != 4) return update;
  return update.view({view[0], view[2], view[1], view[3]}).transpose(1, 2).reshape(shape);
}

/// DoRA: rows at their magnitudes; of an embedding its columns.
void set_lengths(at::Tensor& weight, const weights::LoraPair& pair) {
  const int64_t along = pair.of_embedding ? 0 : 1;
  const at::Tensor lengths = at::linalg_vector_norm(weight, 2, at::IntArrayRef({along})),
                   magnitudes = from_file(pair.magnitude, {pair.out_features});
  weight.mul_((magnitudes / lengths).unsqueeze(along));
}

void add_update(at::Tensor& weight, const weights::LoraPair& pair, const FileLayout& layout,
                bool pissa) {
  if (pissa) {
    const model::PrincipalPart part = model::principal_part(weight, pair.r, pair.scale);
    weight.sub_(at::mm(part.b, part.a).mul_(pair.scale));
  }
  weight.add_(in_order_of(layout, product_of(pair), weight.sizes()));
  if (!pair.magnitude.empty()) set_lengths(weight, pair);
}

constexpr const char* kHead = spec::kHeadTensor;

}  // namespace

QuantisedByRun matrices_quantised(const config::TuningConfig& tuning,
                                  const weights::Checkpoint& base) {
  QuantisedByRun quantised{.options = tuning.quant_options().value(),
                           .tensors = plan::quantised_names(base.arch(), tuning)};
  std::vector<spec::TensorSpec> tensors = spec::tensor_specs(base.arch());
  if (base.arch().vision) {
    quantised.tensors.merge(plan::quantised_tower_names(base.arch(), tuning));
    tensors = plan::with_tower(std::move(tensors), base.arch(), {.is_loaded = true});
  }
  for (const spec::TensorSpec& tensor : tensors) {
    const auto packed = base.packed(tensor.name);
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    if (packed && (is_experts || model::is_stored_as(*packed, quantised.options.format)))
      quantised.tensors.erase(tensor.name);
  }
  return quantised;
}

MergedWeights::MergedWeights(const weights::AdapterBase& base,
                             const weights::AdapterTensors& adapter, bool pissa,
                             QuantisedByRun quantised, const train::TrainedValues* trained)
    : base_(*base.checkpoint),
      adapter_(adapter),
      replaced_(base.replaced),
      pissa_(pissa),
      quantised_(std::move(quantised)),
      trained_(trained) {
  const bool takes_tied_head = base_.arch().tie_word_embeddings && has_own(kHead);
  if (!pissa || !(takes_tied_head || has_own(embedding()))) return;
  throw DataError("PiSSA has no principal part of an embedding, or of a head that is tied to it",
                  takes_tied_head ? kHead : embedding(),
                  "train such an adapter with `init_lora_weights: true`");
}

bool MergedWeights::unties_head() const {
  if (!base_.arch().tie_word_embeddings) return false;
  return has_own(kHead) || has_own(embedding());
}

at::Tensor MergedWeights::head_values() const {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> shape = {base_.arch().vocab_size, base_.arch().hidden_size};
  const auto saved = adapter_.saved.find(kHead);
  if (saved != adapter_.saved.end()) return from_file(saved->second, shape);
  at::Tensor head = at::empty(shape, at::kFloat);
  base_.read(embedding(), DType::kF32, head.data_ptr());
  if (const weights::LoraPair* pair = update_of(kHead)) add_update(head, *pair, {}, pissa_);
  return head;
}

weights::TensorToWrite MergedWeights::head(DType dtype) const {
  const std::vector<int64_t> shape = {base_.arch().vocab_size, base_.arch().hidden_size};
  return {kHead, dtype, shape, [=, this](void* to) {
            at::from_blob(to, shape, model::torch_dtype(dtype)).copy_(head_values());
          }};
}

const weights::LoraPair* MergedWeights::update_of(const std::string& name) const {
  constexpr std::string_view kWeight = ".weight";
  const auto found = adapter_.lora.find(
      name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name);
  return found == adapter_.lora.end() ? nullptr : &found->second;
}

at::Tensor MergedWeights::of(const weights::TensorInfo& info) {
  if (const auto saved = adapter_.saved.find(info.name); saved != adapter_.saved.end())
    return layers::in_memory_order(from_file(saved->second, info.shape_in_files()), info.layout,
                                   info.shape);
  if (name_ == info.name) return merged_;
  const at::NoGradGuard no_grad;
  merged_ = at::Tensor();  // let go before the next one takes its place
  if (is_trained(info.name)) {
    merged_ = trained_->read(info);
    name_ = info.name;
    return merged_;
  }
  merged_ = at::empty(info.shape, at::kFloat);
  base_.read(info.name, DType::kF32, merged_.data_ptr());
  if (quantised_.tensors.contains(info.name)) {
    const at::Tensor rows = merged_.view({-1, info.shape.back()});
    kernels::dequantize_into(kernels::quantize(rows, quantised_.options, info.name), rows);
  }
  if (const weights::LoraPair* pair = update_of(info.name)) {
    add_update(merged_, *pair, info.layout, pissa_);
  }
  name_ = info.name;
  return merged_;
}

}  // namespace sftrun::exporting
