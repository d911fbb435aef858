#include <functional>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::spec {
namespace {

void add_linear(std::vector<TensorSpec>& specs, const ArchSpec& arch, const LinearSpec& linear,
                int64_t layer) {
  const std::string prefix = name_in_layer(arch, layer, linear.module);
  specs.push_back({.name = prefix + ".weight",
                   .shape = {linear.out_features, linear.in_features},
                   .role = TensorRole::kLinear,
                   .layer = layer});
  if (!linear.stored_as.empty()) {
    specs.back().parts = {{name_in_layer(arch, layer, fmt::format("{}.weight", linear.stored_as)),
                           specs.back().shape, 0}};
  }
  if (!linear.bias) return;
  specs.push_back({.name = prefix + ".bias",
                   .shape = {linear.out_features},
                   .role = TensorRole::kBias,
                   .layer = layer});
}

/// In gate_up_proj each expert's gate precedes its up matrix, as transformers stacks them when
/// files store each matrix separately.
std::vector<TensorPart> matrices_of(const ArchSpec& arch, const ExpertSpec& experts,
                                    int64_t layer) {
  std::vector<TensorPart> parts;
  if (experts.matrices.empty()) return parts;
  const int64_t rows = experts.out_features / static_cast<int64_t>(experts.matrices.size());
  int64_t offset = 0;
  for (int64_t expert = 0; expert < arch.mixture.num_experts; ++expert) {
    for (const std::string& matrix : experts.matrices) {
      const std::string module = fmt::format(fmt::runtime(matrix), expert);
      parts.push_back({name_in_layer(arch, layer, module), {rows, experts.in_features}, offset});
      offset += rows * experts.in_features;
    }
  }
  return parts;
}

void add_experts(std::vector<TensorSpec>& specs, const ArchSpec& arch, const ExpertSpec& experts,
                 int64_t layer) {
  const int64_t count = arch.mixture.num_experts, rows = experts.out_features;
  const std::string name = name_in_layer(arch, layer, experts.module);
  specs.push_back({.name = name,
                   .shape = {count, rows, experts.in_features},
                   .role = TensorRole::kExperts,
                   .layer = layer,
                   .parts = matrices_of(arch, experts, layer),
                   .layout = experts.layout});
  if (!experts.bias) return;
  specs.push_back(
      {.name = name + "_bias", .shape = {count, rows}, .role = TensorRole::kBias, .layer = layer});
  if (experts.rows_alternate)
    specs.back().layout = {{count, 2, rows / 2}, {0, 2, 1}, {count, rows}};
}

void add_weight(std::vector<TensorSpec>& specs, const ArchSpec& arch, const WeightSpec& weight,
                int64_t layer) {
  specs.push_back({.name = name_in_layer(arch, layer, weight.name),
                   .shape = weight.shape,
                   .role = weight.tensor_role,
                   .layer = layer});
  specs.back().layout.shape = weight.shape_in_files;
}

void add_norm(std::vector<TensorSpec>& specs, const ArchSpec& arch, const NormSpec& norm,
              int64_t layer) {
  specs.push_back({.name = name_in_layer(arch, layer, norm.module) + ".weight",
                   .shape = {norm.size},
                   .role = TensorRole::kNorm,
                   .layer = layer,
                   .adds_one = norm.adds_one});
}

}  // namespace

std::string name_in_layer(const ArchSpec& arch, int64_t layer, const std::string& module) {
  return fmt::format("{}layers.{}.{}", arch.prefix, layer, module);
}

int64_t TensorSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

AttentionSizes attention_sizes(const ArchSpec& arch, int64_t layer) {
  const LayerSpec& spec = arch.layers.at(static_cast<size_t>(layer));
  return {arch.num_heads, spec.num_kv_heads > 0 ? spec.num_kv_heads : arch.num_kv_heads,
          spec.head_dim > 0 ? spec.head_dim : arch.head_dim};
}

int64_t intermediate_size(const ArchSpec& arch, int64_t layer) {
  const int64_t own = arch.layers.at(static_cast<size_t>(layer)).intermediate_size;
  return own > 0 ? own : arch.intermediate_size;
}

bool is_unused(const ArchSpec& arch, const std::string& name) {
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    if (arch.layers[static_cast<size_t>(layer)].keys_of < 0) continue;
    for (const char* module : {"k_proj.weight", "v_proj.weight", "k_norm.weight"}) {
      if (name == name_in_layer(arch, layer, std::string("self_attn.") + module)) return true;
    }
  }
  return false;
}

namespace {

void add_per_layer_inputs(std::vector<TensorSpec>& specs, const ArchSpec& arch) {
  const int64_t channels = arch.num_layers * arch.per_layer_size;
  if (channels == 0) return;
  specs.push_back({.name = arch.prefix + "embed_tokens_per_layer.weight",
                   .shape = {arch.per_layer_vocab, channels},
                   .role = TensorRole::kEmbedding});
  specs.push_back({.name = arch.prefix + "per_layer_model_projection.weight",
                   .shape = {channels, arch.hidden_size},
                   .role = TensorRole::kLinear});
  specs.push_back({.name = arch.prefix + "per_layer_projection_norm.weight",
                   .shape = {arch.per_layer_size},
                   .role = TensorRole::kNorm});
}

/// Of each kind of tensor those of all blocks.
void add_layer(std::vector<TensorSpec>& specs, const ArchSpec& arch, int64_t layer) {
  const std::vector<BlockTensors> blocks = layer_blocks(arch, layer);
  for (const BlockTensors& block : blocks)
    for (const NormSpec& norm : block.norms) add_norm(specs, arch, norm, layer);
  for (const BlockTensors& block : blocks)
    for (const WeightSpec& weight : block.weights) add_weight(specs, arch, weight, layer);
  for (const BlockTensors& block : blocks)
    for (const LinearSpec& linear : block.linears) add_linear(specs, arch, linear, layer);
  for (const BlockTensors& block : blocks)
    for (const ExpertSpec& experts : block.experts) add_experts(specs, arch, experts, layer);
}

void add_projector(std::vector<TensorSpec>& specs, const ArchSpec& arch, int64_t number) {
  const FeatureProjector& projector = arch.projectors[static_cast<size_t>(number)];
  const int64_t hidden = projector.hidden;
  const auto add = [&](std::string name, std::vector<int64_t> shape, TensorRole role) {
    specs.push_back({.name = std::move(name),
                     .shape = std::move(shape),
                     .role = role,
                     .part = ModelPart::kProjector,
                     .unit = VisionUnit::kFeatures,
                     .projector = number});
  };
  add(projector.first() + ".weight", {hidden, projector.input_width}, TensorRole::kLinear);
  add(projector.first() + ".bias", {hidden}, TensorRole::kBias);
  add(projector.second() + ".weight", {arch.hidden_size, hidden}, TensorRole::kLinear);
  add(projector.second() + ".bias", {arch.hidden_size}, TensorRole::kBias);
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const ArchSpec& arch) {
  std::vector<TensorSpec> specs;
  specs.push_back({.name = arch.prefix + "embed_tokens.weight",
                   .shape = {arch.vocab_size, arch.hidden_size},
                   .role = TensorRole::kEmbedding});
  add_per_layer_inputs(specs, arch);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) add_layer(specs, arch, layer);
  specs.push_back({.name = arch.prefix + "norm.weight",
                   .shape = {arch.hidden_size},
                   .role = TensorRole::kNorm});
  if (arch.score) {
    specs.push_back({.name = kScoreTensor,
                     .shape = {arch.score->num_labels, arch.hidden_size},
                     .role = TensorRole::kHead});
  } else if (!arch.tie_word_embeddings) {
    specs.push_back({.name = "lm_head.weight",
                     .shape = {arch.vocab_size, arch.hidden_size},
                     .role = TensorRole::kHead});
  }
  for (int64_t i = 0; i < std::ssize(arch.projectors); ++i) add_projector(specs, arch, i);
  return specs;
}

}  // namespace sftrun::spec
