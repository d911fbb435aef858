#include <functional>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {
namespace {

void add_linear(std::vector<TensorSpec>& specs, const LinearSpec& linear, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.{}", layer, linear.module);
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

void add_norm(std::vector<TensorSpec>& specs, const ArchSpec& arch, const char* name,
              int64_t layer) {
  specs.push_back({.name = fmt::format("model.layers.{}.{}.weight", layer, name),
                   .shape = {arch.hidden_size},
                   .role = TensorRole::kNorm,
                   .layer = layer});
}

}  // namespace

int64_t TensorSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<LinearSpec> layer_linears(const ArchSpec& arch) {
  const int64_t query_size = arch.num_heads * arch.head_dim;
  const int64_t kv_size = arch.num_kv_heads * arch.head_dim;
  const bool attention_bias = arch.attention_bias, mlp_bias = arch.mlp_bias;
  return {
      {"self_attn.q_proj", arch.hidden_size, query_size, attention_bias},
      {"self_attn.k_proj", arch.hidden_size, kv_size, attention_bias},
      {"self_attn.v_proj", arch.hidden_size, kv_size, attention_bias},
      {"self_attn.o_proj", query_size, arch.hidden_size, attention_bias},
      {"mlp.gate_proj", arch.hidden_size, arch.intermediate_size, mlp_bias},
      {"mlp.up_proj", arch.hidden_size, arch.intermediate_size, mlp_bias},
      {"mlp.down_proj", arch.intermediate_size, arch.hidden_size, mlp_bias},
  };
}

std::vector<TensorSpec> tensor_specs(const ArchSpec& arch) {
  const std::vector<LinearSpec> linears = layer_linears(arch);
  std::vector<TensorSpec> specs;
  specs.push_back({.name = "model.embed_tokens.weight",
                   .shape = {arch.vocab_size, arch.hidden_size},
                   .role = TensorRole::kEmbedding});
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    add_norm(specs, arch, "input_layernorm", layer);
    bool in_mlp = false;
    for (const LinearSpec& linear : linears) {
      const bool first_of_mlp = !in_mlp && linear.module.starts_with("mlp.");
      if (first_of_mlp) add_norm(specs, arch, "post_attention_layernorm", layer);
      in_mlp = in_mlp || first_of_mlp;
      add_linear(specs, linear, layer);
    }
  }
  specs.push_back(
      {.name = "model.norm.weight", .shape = {arch.hidden_size}, .role = TensorRole::kNorm});
  if (!arch.tie_word_embeddings) {
    specs.push_back({.name = "lm_head.weight",
                     .shape = {arch.vocab_size, arch.hidden_size},
                     .role = TensorRole::kHead});
  }
  return specs;
}

}  // namespace sftrun::spec
