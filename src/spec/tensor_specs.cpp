#include <functional>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {
namespace {

void add_linear(std::vector<TensorSpec>& specs, const ArchSpec& arch, const LinearSpec& linear,
                int64_t layer) {
  const std::string prefix = name_in_layer(arch, layer, linear.module);
  specs.push_back({.name = prefix + ".weight",
                   .shape = {linear.out_features, linear.in_features},
                   .role = TensorRole::kLinear,
                   .layer = layer});
  if (linear.slot == LinearSlot::kRouter && arch.mixture.files == ExpertFiles::kMixtral) {
    specs.back().parts = {
        {name_in_layer(arch, layer, "block_sparse_moe.gate.weight"), specs.back().shape, 0}};
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
  const bool is_mixtral = arch.mixture.files == ExpertFiles::kMixtral;
  const std::vector<std::string> matrices =
      experts.slot == ExpertSlot::kDown ? std::vector<std::string>{is_mixtral ? "w2" : "down_proj"}
      : is_mixtral                      ? std::vector<std::string>{"w1", "w3"}
                                        : std::vector<std::string>{"gate_proj", "up_proj"};
  const int64_t rows = experts.out_features / static_cast<int64_t>(matrices.size());
  std::vector<TensorPart> parts;
  int64_t offset = 0;
  for (int64_t expert = 0; expert < arch.mixture.num_experts; ++expert) {
    for (const std::string& matrix : matrices) {
      const std::string module = fmt::format(
          "{}.experts.{}.{}.weight", is_mixtral ? "block_sparse_moe" : "mlp", expert, matrix);
      parts.push_back({name_in_layer(arch, layer, module), {rows, experts.in_features}, offset});
      offset += rows * experts.in_features;
    }
  }
  return parts;
}

/// In gpt-oss files the entries of gate and up alternate.
void add_expert_bias(std::vector<TensorSpec>& specs, const ArchSpec& arch,
                     const ExpertSpec& experts, int64_t layer) {
  const int64_t count = arch.mixture.num_experts, rows = experts.out_features;
  specs.push_back({.name = name_in_layer(arch, layer, experts.module) + "_bias",
                   .shape = {count, rows},
                   .role = TensorRole::kBias,
                   .layer = layer});
  if (arch.mixture.files == ExpertFiles::kGptOss && experts.slot == ExpertSlot::kGateUp)
    specs.back().layout = {{count, 2, rows / 2}, {0, 2, 1}, {count, rows}};
}

void add_experts(std::vector<TensorSpec>& specs, const ArchSpec& arch, const ExpertSpec& experts,
                 int64_t layer) {
  const int64_t count = arch.mixture.num_experts, out = experts.out_features,
                in = experts.in_features;
  TensorSpec spec{.name = name_in_layer(arch, layer, experts.module),
                  .shape = {count, out, in},
                  .role = TensorRole::kExperts,
                  .layer = layer};
  if (arch.mixture.files == ExpertFiles::kWhole) {
    // stored as in memory
  } else if (arch.mixture.files != ExpertFiles::kGptOss) {
    spec.parts = matrices_of(arch, experts, layer);
  } else if (experts.slot == ExpertSlot::kGateUp) {
    spec.layout = {{count, 2, out / 2, in}, {0, 3, 2, 1}, {count, in, out}};
  } else {
    spec.layout = {{count, out, in}, {0, 2, 1}, {count, in, out}};
  }
  specs.push_back(std::move(spec));
  if (experts.bias) add_expert_bias(specs, arch, experts, layer);
}

void add_weight(std::vector<TensorSpec>& specs, const ArchSpec& arch, const WeightSpec& weight,
                int64_t layer) {
  specs.push_back({.name = name_in_layer(arch, layer, weight.name),
                   .shape = weight.shape,
                   .role = weight.role,
                   .layer = layer});
  specs.back().layout.shape = weight.shape_in_files;
}

void add_norm(std::vector<TensorSpec>& specs, const ArchSpec& arch, const NormSpec& norm,
              int64_t layer) {
  specs.push_back({.name = name_in_layer(arch, layer, norm.module) + ".weight",
                   .shape = {norm.size},
                   .role = TensorRole::kNorm,
                   .layer = layer});
}

}  // namespace

std::string name_in_layer(const ArchSpec& arch, int64_t layer, const std::string& module) {
  return fmt::format("{}layers.{}.{}", arch.prefix, layer, module);
}

int64_t TensorSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

namespace {

bool is_sparse(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).sparse;
}

bool is_delta(const ArchSpec& arch, int64_t layer) {
  return arch.layers.at(static_cast<size_t>(layer)).mixer == Mixer::kDeltaNet;
}

}  // namespace

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

LinearSpec router_of(const ArchSpec& arch) {
  const bool is_gpt_oss = arch.mixture.files == ExpertFiles::kGptOss;
  const char* module = arch.mixture.beside_dense ? "router.proj"
                       : is_gpt_oss              ? "mlp.router"
                                                 : "mlp.gate";
  return {LinearSlot::kRouter, module, arch.hidden_size, arch.mixture.num_experts,
          arch.mixture.bias};
}

std::vector<LinearSpec> attention_linears(const ArchSpec& arch, int64_t layer) {
  const LayerSpec& spec = arch.layers.at(static_cast<size_t>(layer));
  const AttentionSizes sizes = attention_sizes(arch, layer);
  const int64_t hidden = arch.hidden_size, rows = (arch.attention_gate ? 2 : 1) * sizes.queries();
  const bool bias = arch.qkv_bias;
  std::vector<LinearSpec> linears = {{LinearSlot::kQ, "self_attn.q_proj", hidden, rows, bias}};
  if (spec.keys_of < 0) {
    linears.push_back({LinearSlot::kK, "self_attn.k_proj", hidden, sizes.keys(), bias});
    if (!spec.value_is_key)
      linears.push_back({LinearSlot::kV, "self_attn.v_proj", hidden, sizes.keys(), bias});
  }
  linears.push_back({LinearSlot::kO, "self_attn.o_proj", sizes.queries(), hidden, arch.o_bias});
  return linears;
}

std::vector<LinearSpec> delta_net_linears(const ArchSpec& arch) {
  const DeltaNetSpec& delta = arch.delta_net;
  const int64_t hidden = arch.hidden_size, heads = delta.num_value_heads;
  return {
      {LinearSlot::kDeltaQkv, "linear_attn.in_proj_qkv", hidden, delta.channels()},
      {LinearSlot::kDeltaZ, "linear_attn.in_proj_z", hidden, delta.values()},
      {LinearSlot::kDeltaB, "linear_attn.in_proj_b", hidden, heads},
      {LinearSlot::kDeltaA, "linear_attn.in_proj_a", hidden, heads},
      {LinearSlot::kDeltaOut, "linear_attn.out_proj", delta.values(), hidden},
  };
}

void add_shared_expert(std::vector<LinearSpec>& linears, const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size, inner = arch.mixture.shared_size;
  if (inner == 0) return;
  linears.push_back({LinearSlot::kSharedGate, "mlp.shared_expert.gate_proj", hidden, inner});
  linears.push_back({LinearSlot::kSharedUp, "mlp.shared_expert.up_proj", hidden, inner});
  linears.push_back({LinearSlot::kSharedDown, "mlp.shared_expert.down_proj", inner, hidden});
  linears.push_back({LinearSlot::kSharedRouter, "mlp.shared_expert_gate", hidden, 1});
}

}  // namespace

std::vector<LinearSpec> layer_linears(const ArchSpec& arch, int64_t layer) {
  const int64_t hidden = arch.hidden_size, inner = intermediate_size(arch, layer);
  const bool mlp_bias = arch.mlp_bias;
  if (arch.fused_projections) {
    const AttentionSizes sizes = attention_sizes(arch, layer);
    return {
        {LinearSlot::kQkv, "self_attn.qkv_proj", hidden, sizes.queries() + 2 * sizes.keys(),
         arch.qkv_bias},
        {LinearSlot::kO, "self_attn.o_proj", sizes.queries(), hidden, arch.o_bias},
        {LinearSlot::kGateUp, "mlp.gate_up_proj", hidden, 2 * inner, mlp_bias},
        {LinearSlot::kDown, "mlp.down_proj", inner, hidden, mlp_bias},
    };
  }
  std::vector<LinearSpec> linears =
      is_delta(arch, layer) ? delta_net_linears(arch) : attention_linears(arch, layer);
  if (is_sparse(arch, layer)) {
    linears.push_back(router_of(arch));
    add_shared_expert(linears, arch);
    if (!arch.mixture.beside_dense) return linears;
  }
  linears.push_back({LinearSlot::kGate, "mlp.gate_proj", hidden, inner, mlp_bias});
  linears.push_back({LinearSlot::kUp, "mlp.up_proj", hidden, inner, mlp_bias});
  linears.push_back({LinearSlot::kDown, "mlp.down_proj", inner, hidden, mlp_bias});
  if (const int64_t size = arch.per_layer_size; size > 0) {
    linears.push_back({LinearSlot::kPerLayerGate, "per_layer_input_gate", hidden, size});
    linears.push_back({LinearSlot::kPerLayerProjection, "per_layer_projection", size, hidden});
  }
  return linears;
}

std::vector<ExpertSpec> layer_experts(const ArchSpec& arch, int64_t layer) {
  if (!is_sparse(arch, layer)) return {};
  const int64_t hidden = arch.hidden_size, inner = arch.mixture.intermediate_size;
  const bool bias = arch.mixture.bias;
  const std::string experts = arch.mixture.beside_dense ? "experts." : "mlp.experts.";
  return {{ExpertSlot::kGateUp, experts + "gate_up_proj", hidden, 2 * inner, bias},
          {ExpertSlot::kDown, experts + "down_proj", inner, hidden, bias}};
}

std::vector<WeightSpec> layer_weights(const ArchSpec& arch, int64_t layer) {
  if (is_delta(arch, layer)) {
    const int64_t heads = arch.delta_net.num_value_heads, channels = arch.delta_net.channels(),
                  kernel = arch.delta_net.conv_kernel;
    return {{WeightSlot::kDeltaConv,
             "linear_attn.conv1d.weight",
             {channels, kernel},
             TensorRole::kOther,
             {channels, 1, kernel}},
            {WeightSlot::kDeltaALog, "linear_attn.A_log", {heads}},
            {WeightSlot::kDeltaDtBias, "linear_attn.dt_bias", {heads}, TensorRole::kBias}};
  }
  std::vector<WeightSpec> weights;
  if (arch.attention_sinks)
    weights.push_back({WeightSlot::kSinks, "self_attn.sinks", {arch.num_heads}});
  if (is_sparse(arch, layer) && arch.mixture.beside_dense) {
    weights.push_back({WeightSlot::kRouterScale, "router.scale", {arch.hidden_size}});
    weights.push_back(
        {WeightSlot::kExpertScale, "router.per_expert_scale", {arch.mixture.num_experts}});
  }
  if (arch.layer_scalar)
    weights.push_back({WeightSlot::kLayerScalar, "layer_scalar", {1}, TensorRole::kBuffer});
  return weights;
}

std::vector<NormSpec> layer_norms(const ArchSpec& arch, int64_t layer) {
  const int64_t hidden = arch.hidden_size;
  std::vector<NormSpec> norms;
  if (arch.norms != NormPlacement::kAfter)
    norms.push_back({NormSlot::kAttentionIn, "input_layernorm", hidden});
  if (is_delta(arch, layer)) {
    norms.push_back({NormSlot::kDelta, "linear_attn.norm", arch.delta_net.value_dim});
  } else if (arch.qk_norm != QkNorm::kNone) {
    const bool whole = arch.qk_norm == QkNorm::kWhole;
    const AttentionSizes sizes = attention_sizes(arch, layer);
    norms.push_back(
        {NormSlot::kQuery, "self_attn.q_norm", whole ? sizes.queries() : sizes.head_dim});
    if (arch.layers.at(static_cast<size_t>(layer)).keys_of < 0)
      norms.push_back({NormSlot::kKey, "self_attn.k_norm", whole ? sizes.keys() : sizes.head_dim});
  }
  // transformers names a norm by its position; "post_attention" is before the MLP in this layout.
  switch (arch.norms) {
    case NormPlacement::kBefore:
      norms.push_back({NormSlot::kFeedForwardIn, "post_attention_layernorm", hidden});
      break;
    case NormPlacement::kBoth:
      norms.push_back({NormSlot::kAttentionOut, "post_attention_layernorm", hidden});
      norms.push_back({NormSlot::kFeedForwardIn, "pre_feedforward_layernorm", hidden});
      norms.push_back({NormSlot::kFeedForwardOut, "post_feedforward_layernorm", hidden});
      break;
    case NormPlacement::kAfter:
      norms.push_back({NormSlot::kAttentionOut, "post_attention_layernorm", hidden});
      norms.push_back({NormSlot::kFeedForwardOut, "post_feedforward_layernorm", hidden});
      break;
  }
  if (is_sparse(arch, layer) && arch.mixture.beside_dense) {
    norms.push_back({NormSlot::kDenseOut, "post_feedforward_layernorm_1", hidden});
    norms.push_back({NormSlot::kExpertsIn, "pre_feedforward_layernorm_2", hidden});
    norms.push_back({NormSlot::kExpertsOut, "post_feedforward_layernorm_2", hidden});
  }
  if (arch.per_layer_size > 0)
    norms.push_back({NormSlot::kPerLayerOut, "post_per_layer_input_norm", hidden});
  return norms;
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

}  // namespace

std::vector<TensorSpec> tensor_specs(const ArchSpec& arch) {
  std::vector<TensorSpec> specs;
  specs.push_back({.name = arch.prefix + "embed_tokens.weight",
                   .shape = {arch.vocab_size, arch.hidden_size},
                   .role = TensorRole::kEmbedding});
  add_per_layer_inputs(specs, arch);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const NormSpec& norm : layer_norms(arch, layer)) add_norm(specs, arch, norm, layer);
    for (const WeightSpec& weight : layer_weights(arch, layer))
      add_weight(specs, arch, weight, layer);
    for (const LinearSpec& linear : layer_linears(arch, layer))
      add_linear(specs, arch, linear, layer);
    for (const ExpertSpec& experts : layer_experts(arch, layer))
      add_experts(specs, arch, experts, layer);
  }
  specs.push_back({.name = arch.prefix + "norm.weight",
                   .shape = {arch.hidden_size},
                   .role = TensorRole::kNorm});
  if (!arch.tie_word_embeddings) {
    specs.push_back({.name = "lm_head.weight",
                     .shape = {arch.vocab_size, arch.hidden_size},
                     .role = TensorRole::kHead});
  }
  return specs;
}

}  // namespace sftrun::spec
