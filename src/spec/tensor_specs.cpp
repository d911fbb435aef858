#include <functional>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {
namespace {

std::string name_in_layer(const ArchSpec& arch, int64_t layer, const std::string& module) {
  return fmt::format("{}layers.{}.{}", arch.prefix, layer, module);
}

void add_linear(std::vector<TensorSpec>& specs, const ArchSpec& arch, const LinearSpec& linear,
                int64_t layer) {
  const std::string prefix = name_in_layer(arch, layer, linear.module);
  specs.push_back({.name = prefix + ".weight",
                   .shape = {linear.out_features, linear.in_features},
                   .role = TensorRole::kLinear,
                   .layer = layer});
  if (!linear.bias) return;
  specs.push_back({.name = prefix + ".bias",
                   .shape = {linear.out_features},
                   .role = TensorRole::kBias,
                   .layer = layer});
}

void add_norm(std::vector<TensorSpec>& specs, const ArchSpec& arch, const NormSpec& norm,
              int64_t layer) {
  specs.push_back({.name = name_in_layer(arch, layer, norm.module) + ".weight",
                   .shape = {norm.size},
                   .role = TensorRole::kNorm,
                   .layer = layer});
}

}  // namespace

int64_t TensorSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<LinearSpec> layer_linears(const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size, inner = arch.intermediate_size;
  const int64_t queries = arch.num_heads * arch.head_dim, keys = arch.num_kv_heads * arch.head_dim;
  const bool qkv_bias = arch.qkv_bias, o_bias = arch.o_bias, mlp_bias = arch.mlp_bias;
  if (arch.fused_projections) {
    return {
        {LinearSlot::kQkv, "self_attn.qkv_proj", hidden, queries + 2 * keys, qkv_bias},
        {LinearSlot::kO, "self_attn.o_proj", queries, hidden, o_bias},
        {LinearSlot::kGateUp, "mlp.gate_up_proj", hidden, 2 * inner, mlp_bias},
        {LinearSlot::kDown, "mlp.down_proj", inner, hidden, mlp_bias},
    };
  }
  return {
      {LinearSlot::kQ, "self_attn.q_proj", hidden, queries, qkv_bias},
      {LinearSlot::kK, "self_attn.k_proj", hidden, keys, qkv_bias},
      {LinearSlot::kV, "self_attn.v_proj", hidden, keys, qkv_bias},
      {LinearSlot::kO, "self_attn.o_proj", queries, hidden, o_bias},
      {LinearSlot::kGate, "mlp.gate_proj", hidden, inner, mlp_bias},
      {LinearSlot::kUp, "mlp.up_proj", hidden, inner, mlp_bias},
      {LinearSlot::kDown, "mlp.down_proj", inner, hidden, mlp_bias},
  };
}

std::vector<NormSpec> layer_norms(const ArchSpec& arch) {
  const int64_t hidden = arch.hidden_size;
  std::vector<NormSpec> norms;
  if (arch.norms != NormPlacement::kAfter)
    norms.push_back({NormSlot::kAttentionIn, "input_layernorm", hidden});
  if (arch.qk_norm != QkNorm::kNone) {
    const bool whole = arch.qk_norm == QkNorm::kWhole;
    norms.push_back({NormSlot::kQuery, "self_attn.q_norm",
                     whole ? arch.num_heads * arch.head_dim : arch.head_dim});
    norms.push_back({NormSlot::kKey, "self_attn.k_norm",
                     whole ? arch.num_kv_heads * arch.head_dim : arch.head_dim});
  }
  // transformers names a norm by where it stands, and in the first layouts that is before the
  // feed-forward half.
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
  return norms;
}

std::vector<TensorSpec> tensor_specs(const ArchSpec& arch) {
  const std::vector<LinearSpec> linears = layer_linears(arch);
  const std::vector<NormSpec> norms = layer_norms(arch);
  std::vector<TensorSpec> specs;
  specs.push_back({.name = arch.prefix + "embed_tokens.weight",
                   .shape = {arch.vocab_size, arch.hidden_size},
                   .role = TensorRole::kEmbedding});
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const NormSpec& norm : norms) add_norm(specs, arch, norm, layer);
    for (const LinearSpec& linear : linears) add_linear(specs, arch, linear, layer);
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
